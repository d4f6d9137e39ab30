"""The public test suites that can be run, and how each of their modules is run.

A module is what one process runs. Only parts that use sockets, or what sockets are used with
(readiness, processes, threads, signals), are listed.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

import outcomes

DEBIAN = ["libpython3.11-testsuite", "python3.11-venv"]
INTERPRETER = "/usr/bin/python3.11"
WHEELS = {
    "tornado": "tornado",
    "gevent": "gevent",
    "twisted": "twisted[tls,http2]",
    "uvloop": "uvloop",
}
TEST_WHEELS = ["pyhamcrest", "hypothesis", "pycurl", "aiohttp", "psutil"]

CPYTHON = """
socket ssl asyncio selectors socketserver httplib httpservers urllib urllib2 urllib2_localnet
robotparser wsgiref ftplib smtplib smtpd telnetlib poplib imaplib nntplib xmlrpc docxmlrpc asyncore
asynchat select poll epoll eintr signal threadsignals subprocess popen os threading thread logging
multiprocessing_fork multiprocessing_forkserver multiprocessing_spawn
multiprocessing_main_handling concurrent_futures fork1 posix io largefile
"""
# Modules that ask for the network and use this host alone; the others would leave it.
LOOPBACK_ONLY = ["socketserver"]
# Tests that wait for ever where the host lacks what they are about: a loopback of VM sockets.
LEFT_OUT = {"socket": ["ThreadedVSOCKSocketStreamTest"]}
TORNADO = """
iostream_test tcpserver_test tcpclient_test httpserver_test httpclient_test simple_httpclient_test
curl_httpclient_test websocket_test web_test ioloop_test netutil_test process_test queues_test
http1connection_test httputil_test
"""
GEVENT = """
socket socket_close socket_errors socket_ex socket_send_memoryview socket_timeout socketpair server
server_pywsgi pywsgi backdoor select selectors ssl subprocess hub_join core_fork greenio
makefile_ref os signal threadpool close_backend_fd
"""
TORNADO_RUN = ["-m", "tornado.test.runtests", "--verbose"]
TWISTED = """
internet.test.test_tcp internet.test.test_tls internet.test.test_socket
internet.test.test_endpoints internet.test.test_epollreactor internet.test.test_asyncioreactor
internet.test.test_fdset internet.test.test_threads internet.test.test_core
internet.test.test_process test.test_tcp test.test_tcp_internals test.test_ssl test.test_internet
test.test_ftp test.test_policies test.test_protocols test.test_sslverify test.test_abstract
protocols.test.test_tls web.test.test_web web.test.test_webclient web.test.test_agent
web.test.test_wsgi web.test.test_xmlrpc web.test.test_http web.test.test_proxy web.test.test_cgi
spread.test.test_pb mail.test.test_smtp mail.test.test_imap mail.test.test_pop3
conch.test.test_telnet words.test.test_irc
"""
UVLOOP = """
tcp sockets unix pipes runner process process_spawning signals context executors libuv_api base
aiohttp regr1 dealloc
"""


class Missing(Exception):
    """Something that a suite needs is not there."""


@dataclass
class Printed:
    """What a run left."""

    text: str
    directory: Path


@dataclass
class Module:
    """One module of a suite: how it is run and how its outcomes are read.

    `command` is given the directory of the run, the tests to leave out, and the tests to run when
    those are not all.
    """

    suite: str
    name: str
    command: Callable[[Path, list, Optional[list]], list]
    read: Callable[[Printed], dict]
    # Whether tests can be left out, so that a run goes on behind one that hangs.
    can_leave_out: bool

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.name}"


def cpython(name: str, limit_s: int, python: str) -> Module:
    def command(directory: Path, without: list, only: Optional[list]) -> list:
        words = [python, "-m", "test", "-v", f"--timeout={limit_s}"]
        words += ["--junit-xml", str(directory / "outcomes.xml")]
        if name in LOOPBACK_ONLY:
            words += ["-u", "network"]
        for test in [*without, *LEFT_OUT.get(name, [])]:
            words += ["--ignore", test]
        for test in only or []:
            words += ["--match", test]
        return [*words, f"test_{name}"]

    def read(printed: Printed) -> dict:
        return outcomes.from_junit(printed.directory / "outcomes.xml") or outcomes.from_unittest(
            printed.text
        )

    return Module("cpython", name, command, read, True)


def wheel(directory: Path, suite: str, name: str) -> Module:
    python = directory / "venv" / "bin" / "python"
    words, read = {
        "tornado": ([*TORNADO_RUN, f"tornado.test.{name}"], outcomes.from_unittest),
        "gevent": (["-m", f"gevent.tests.test__{name}", "-v"], outcomes.from_unittest),
        "uvloop": (["-m", "unittest", "-v", f"tests.test_{name}"], outcomes.from_unittest),
        "twisted": (
            ["-m", "twisted.trial", "--reporter=verbose", f"twisted.{name}"],
            outcomes.from_trial,
        ),
    }[suite]

    def command(_: Path, __: list, only: Optional[list]) -> list:
        if not only:
            return [str(python), *words]
        if suite in ("tornado", "uvloop"):
            return [str(python), *words[:-1], *only]
        if suite == "gevent":
            return [str(python), *words, *[".".join(test.split(".")[-2:]) for test in only]]
        return [str(python), *words[:-1], *only]

    return Module(suite, name, command, lambda printed: read(printed.text), False)


def modules(directory: Path, limit_s: int, python: str) -> list:
    """Every module of every suite."""
    found = [cpython(name, limit_s, python) for name in CPYTHON.split()]
    for suite, names in (("tornado", TORNADO), ("gevent", GEVENT), ("twisted", TWISTED),
                         ("uvloop", UVLOOP)):
        found += [wheel(directory, suite, name) for name in names.split()]
    return found


def check(module: Module, directory: Path, python: str) -> None:
    """Raises Missing when a module cannot be run here."""
    if module.suite == "cpython":
        place = Path(python).parent.parent
        if not any(place.glob(f"lib/python3*/test/test_{module.name}*")):
            raise Missing(f"no test_{module.name} beside {python}; --peers installs Debian's")
    elif not any(directory.glob(f"venv/lib/python3*/site-packages/{module.suite}")):
        raise Missing(f"{module.suite} is not installed; call this with --peers")


def install(directory: Path) -> None:
    """Installs what the suites need: Debian's packages, and wheels beside the build."""
    if shutil.which("apt-get") is None:
        sys.exit("--peers needs Debian's apt-get")
    lock = ["-o", "DPkg::Lock::Timeout=300"]
    subprocess.run(["apt-get", "update", *lock], check=False, timeout=600)
    subprocess.run(["apt-get", "install", "-y", *lock, *DEBIAN], check=True, timeout=1200)
    directory.mkdir(parents=True, exist_ok=True)
    venv = directory / "venv"
    subprocess.run([INTERPRETER, "-m", "venv", str(venv)], check=True, timeout=300)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *WHEELS.values(), *TEST_WHEELS], check=True, timeout=1200)
    install_uvloop_tests(directory)


def install_uvloop_tests(directory: Path) -> None:
    """Takes them from the source package, as the wheel has none, to where Python finds them."""
    venv, place = directory / "venv", directory / "uvloop"
    python = str(venv / "bin" / "python")
    with tempfile.TemporaryDirectory() as work:
        download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "uvloop"]
        subprocess.run([python, *download, "-d", work, "uvloop"], check=True, timeout=900)
        with tarfile.open(next(Path(work).glob("uvloop-*.tar.gz"))) as source:
            inside = re.compile(r"[^/]+/tests/(?!.*\.\.)")
            source.extractall(work, [m for m in source.getmembers() if inside.match(m.name)])
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.move(str(next(Path(work).glob("uvloop-*/tests"))), place / "tests")
    packages = next(venv.glob("lib/python3*/site-packages"))
    (packages / "uvloop-tests.pth").write_text(f"{place}\n")
