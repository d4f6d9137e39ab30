"""Services by name between hosts: host_services.py WEFT CASE DIRECTORY PING.

As hosts.py, whose machine this has, too. PING is the example of a service and its client.
"""

import json
import sys

from two_hosts import DIRECTORY, LIMIT, WEFT, hosts, run_case, sh, text_of, until

PING = sys.argv[4]
BACK = "14 bytes came back"


def serve(host):
    server, log = host.start(PING, "serve")
    until("the service is offered", lambda: "serving ping" in text_of(log))
    return server


def offers(host):
    """The nodes whose service a host knows, and the numbers of their endpoints."""
    told = json.loads(host.run(WEFT, "status", "--json"))
    return {offer["node"]: offer["vpid"] for offer in told["offers"] if offer["name"] == "ping"}


def await_offers(host, *nodes):
    until(f"offers on {nodes}", lambda: sorted(offers(host)) == sorted(nodes))


def refused(host, place, words, user=0):
    how = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()
    client, log = host.start(*how, PING, place)
    assert client.wait(LIMIT) != 0, text_of(log)
    assert words in text_of(log), text_of(log)


def services():
    """A service answers clients of both hosts, is found by its name, host and address, and goes
    with its program. Another user is let in by the rules alone."""
    one, two = hosts("--daemon-services", "0:ping:1000")
    sh(f"chmod 755 {DIRECTORY} {one.home}")
    refused(one, "", "nobody offers a service ping")
    server = serve(two)
    await_offers(one, 1)
    nodes = json.loads(one.run(WEFT, "fabric", "nodes", "--json"))["nodes"]
    name = next(node["name"] for node in nodes if node["number"] == 1)
    for place in ("", "ping", "@1", f"ping@{name}", "@10.9.0.2", f"1:{offers(one)[1]}"):
        assert BACK in one.run(PING, place), place
    table = one.run(WEFT, "status").split("Services that programs offer")[1]
    assert "ping" in table and name in table, table
    refused(one, "@0", "nobody offers a service ping")
    refused(one, "@elsewhere", "no host \"elsewhere\" is known here")
    # Other users.
    setpriv = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
    assert BACK in one.run(*setpriv, PING, "@1")
    refused(one, "@1", "may not use the service ping", user=1001)
    # Each host has its own.
    own = serve(one)
    await_offers(two, 0, 1)
    for host, place in ((one, "@0"), (one, "@1"), (two, "@0"), (two, "@1")):
        assert BACK in host.run(PING, place), place
    # The name goes with the program, however that ends.
    server.kill()
    await_offers(one, 0)
    refused(one, "@1", "nobody offers a service ping")
    # It comes back after a restart of the daemon, and clients of the other host find it again.
    one.daemon.kill()
    one.daemon.wait(LIMIT)
    one.start_daemon("--daemon-services", "0:ping:1000")
    one.await_both()
    await_offers(two, 0)
    assert BACK in two.run(PING, "@0")
    own.kill()
    await_offers(two)


run_case(globals())
