"""Perl and Ruby: their own buffers and threads over sockets."""

from harness import Case, SOURCES, check, find, free_port, python

PACKAGES = ("perl", "ruby")


def echo(interpreter, ending):
    def run(node):
        port = free_port()
        program = find(interpreter)
        server = node.server(program, SOURCES / f"echo_server.{ending}", port, port=port)
        own = (program, SOURCES / f"echo_client.{ending}", port)
        for client in (own, (python(), SOURCES / "echo_client.py", port)):
            ended = node.client(*client)
            check("the same bytes came back" in ended.stdout, ended.report())
        node.stop(server)

    return run


CASES = [
    Case("perl sockets", echo("perl", "pl"), ("perl", "python3")),
    Case("ruby sockets", echo("ruby", "rb"), ("ruby", "python3")),
]
