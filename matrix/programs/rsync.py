"""The rsync daemon: a process for each connection, both directions at once, compressed or not."""

import shutil

from harness import Case, check, find, free_port, same, tree

PACKAGES = ("rsync",)

CONFIGURATION = """
use chroot = no
pid file = {directory}/rsyncd.pid
[module]
    path = {directory}/module
    read only = no
    {user}
"""


def start(node):
    import os

    port = free_port()
    user = "uid = root\n    gid = root" if os.geteuid() == 0 else ""
    (node.directory / "module").mkdir()
    path = node.write("rsyncd.conf", CONFIGURATION.format(directory=node.directory, user=user))
    server = node.server(
        find("rsync"), "--daemon", "--no-detach", "--config", path, "--port", port,
        "--address", "127.0.0.1", port=port,
    )
    return server, f"rsync://127.0.0.1:{port}/module/"


def synchronised(*options):
    def run(node):
        server, url = start(node)
        node.random_file("tree/big", 60_000_000)
        for number in range(400):
            node.random_file(f"tree/{number % 7}/{number}", number * 37, seed=number)
        source = node.directory / "tree"
        rsync = (find("rsync"), "-a", *options)
        node.client(*rsync, f"{source}/", url)
        same(tree(node.directory / "module"), tree(source), "files that were sent")
        # Parts of files that differ: both ends compare checksums, talking both ways at once.
        with open(source / "big", "r+b") as file:
            for place in range(0, 60_000_000, 1_700_000):
                file.seek(place)
                file.write(b"something else")
        shutil.rmtree(source / "3")
        node.client(*rsync, "--delete", "--checksum", "--no-whole-file", f"{source}/", url)
        same(tree(node.directory / "module"), tree(source), "files that were changed")
        node.client(*rsync, url, f"{node.directory / 'back'}/")
        same(tree(node.directory / "back"), tree(source), "files that were fetched")
        listing = node.client(find("rsync"), "-r", url)
        check(listing.stdout.count("\n") > 300, listing.report())
        node.stop(server)

    return run


CASES = [
    Case("rsync daemon", synchronised(), ("rsync",)),
    Case("rsync daemon, compressed", synchronised("-z"), ("rsync",)),
]
