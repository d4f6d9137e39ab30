"""OpenSSH: a server with keys of its own that forks, executes itself, and gives up its rights."""

import getpass
import os
from pathlib import Path

from harness import Case, Skip, check, find, free_port, python, same, sha256

PACKAGES = ("openssh-server", "openssh-client")
NEEDS = ("sshd", "ssh", "scp", "ssh-keygen")
SHARE = 0.9
BIG = 200_000_000

SERVER = """
ListenAddress 127.0.0.1
Port {port}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/client_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
AllowTcpForwarding yes
Subsystem sftp internal-sftp
"""

CLIENT = """
Host *
    IdentityFile {directory}/client_key
    IdentitiesOnly yes
    UserKnownHostsFile {directory}/known_hosts
    StrictHostKeyChecking no
    LogLevel ERROR
    BatchMode yes
    Port {port}
"""


def start(node):
    # sshd changes its root to this directory before a user is known; Debian's service makes it.
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    elif not Path("/run/sshd").is_dir():
        raise Skip("sshd needs /run/sshd, which only root can make")
    port = free_port()
    for name in ("host_key", "client_key"):
        node.plain(
            find("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", node.directory / name
        )
    names = {"directory": node.directory, "port": port}
    server = node.write("sshd_config", SERVER.format(**names))
    client = node.write("ssh_config", CLIENT.format(**names))
    return node.server(find("sshd"), "-D", "-e", "-f", server, port=port), client


def copy(*options):
    def run(node):
        server, config = start(node)
        source, digest = node.random_file("big", BIG)
        there = f"{getpass.getuser()}@127.0.0.1"
        argv = (find("scp"), "-q", "-F", config, *options)
        node.client(*argv, source, f"{there}:{node.directory}/up", limit=120)
        same(sha256(node.directory / "up"), digest, "SHA-256 of what was sent")
        node.client(*argv, f"{there}:{source}", node.directory / "down", limit=120)
        same(sha256(node.directory / "down"), digest, "SHA-256 of what was fetched")
        node.stop(server)

    return run


def commands(node):
    """Commands with input and output, their status, many sessions over one connection."""
    server, config = start(node)
    ssh = (find("ssh"), "-F", config, f"{getpass.getuser()}@127.0.0.1")
    source, digest = node.random_file("input", 5_000_000)
    with open(source, "rb") as file:
        client = node.finished(node.start_client(*ssh, "sha256sum", stdin=file))
    same(client.stdout.split()[0], digest, "SHA-256 of standard input")
    node.finished(node.start_client(*ssh, "exit 7"), status=7)
    control = node.directory / "control"
    master = node.start_client(*ssh[:1], "-MN", "-S", control, *ssh[1:])
    for _ in range(500):
        if control.exists():
            break
        node.plain("sleep", "0.02")
    running = [
        node.start_client(*ssh[:1], "-S", control, *ssh[1:], f"seq {n * 20_000}")
        for n in range(1, 5)
    ]
    for number, client in enumerate(running, 1):
        node.finished(client)
        wanted = "".join(f"{line}\n" for line in range(1, number * 20_000 + 1))
        check(client.stdout == wanted, f"other lines: {client.report()}")
    node.plain(*ssh[:1], "-S", control, "-O", "exit", *ssh[1:])
    master.wait(10)
    node.stop(server)


def forwarded(node):
    """A port forwarded through the connection: ssh and sshd are client and server of others too."""
    server, config = start(node)
    source, digest = node.random_file("www/file", 100_000_000)
    web, port = free_port(), free_port()
    node.server(
        python(), "-m", "http.server", "-b", "127.0.0.1", "-d", source.parent, web, port=web
    )
    tunnel = node.start_client(
        find("ssh"), "-F", config, "-N", "-L", f"127.0.0.1:{port}:127.0.0.1:{web}",
        f"{getpass.getuser()}@127.0.0.1",
    )
    node.await_port(port, tunnel)
    node.client(find("curl"), "-sSf", "-o", "got", f"http://127.0.0.1:{port}/file")
    same(sha256(node.directory / "got"), digest, "SHA-256 through the tunnel")
    node.stop(tunnel)
    node.stop(server)


CASES = [
    Case("openssh scp 200 MB", copy(), NEEDS, share=SHARE),
    Case("openssh scp, old protocol", copy("-O"), NEEDS, share=SHARE),
    Case(
        "openssh commands", commands, NEEDS, share=0.5,
        note="short sessions stay on TCP, and so does what the ends say before one is long",
    ),
    Case(
        "openssh forwarding", forwarded, (*NEEDS, "curl"), share=SHARE, talks_to_itself=True
    ),
]
