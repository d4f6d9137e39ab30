"""git daemon: starts a program for each connection, with the connection as its input and output."""

from harness import Case, check, find, free_port, same

PACKAGES = ("git",)


def cloned(node):
    git = find("git")
    home = {"HOME": str(node.directory), "GIT_CONFIG_NOSYSTEM": "1"}
    for name in ("AUTHOR", "COMMITTER"):
        home |= {f"GIT_{name}_NAME": "weft", f"GIT_{name}_EMAIL": "weft@localhost"}
    made = node.directory / "served" / "made"
    for number in range(60):
        node.random_file(f"served/made/{number % 5}/{number}", number * 36_000, seed=number)
    node.plain(git, "init", "-q", "-b", "main", made, env=home)
    node.plain(git, "-C", made, "add", ".", env=home)
    node.plain(git, "-C", made, "commit", "-q", "-m", "all of it", env=home)
    port = free_port()
    server = node.server(
        git, "daemon", "--reuseaddr", "--export-all", "--enable=receive-pack",
        "--listen=127.0.0.1", f"--port={port}", f"--base-path={made.parent}", port=port, env=home,
    )
    url, copy = f"git://127.0.0.1:{port}/made", node.directory / "copy"
    node.client(git, "clone", "-q", url, copy, env=home)
    node.plain(git, "-C", copy, "fsck", "--full", "--strict", env=home)
    heads = [node.plain(git, "-C", at, "rev-parse", "HEAD", env=home).stdout for at in (made, copy)]
    same(heads[1], heads[0], "the head of the clone")
    status = node.plain(git, "-C", copy, "status", "--porcelain", env=home)
    same(status.stdout, "", "files of the clone that differ")
    # The other way.
    node.random_file("copy/new", 3_000_000)
    node.plain(git, "-C", copy, "add", ".", env=home)
    node.plain(git, "-C", copy, "commit", "-q", "-m", "more", env=home)
    node.client(git, "-C", copy, "push", "-q", "origin", "HEAD:refs/heads/pushed", env=home)
    pushed = node.plain(git, "-C", made, "rev-parse", "pushed", env=home).stdout
    wanted = node.plain(git, "-C", copy, "rev-parse", "HEAD", env=home).stdout
    same(pushed, wanted, "what was pushed")
    node.plain(git, "-C", made, "fsck", "--full", "--strict", env=home)
    refs = node.client(git, "ls-remote", url, env=home)
    check(refs.stdout.count("refs/heads/") == 2, refs.report())
    node.stop(server)


CASES = [Case("git daemon clone and push", cloned, ("git",), share=0.9)]
