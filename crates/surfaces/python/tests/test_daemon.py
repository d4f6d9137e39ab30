"""Metrics: what is asked of the `weft` command and of the daemon."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from conftest import PATIENCE, answers

import weft
from weft import metrics
from weft._command import CommandFailed, weft_command

try:
    weft_command()
except CommandFailed as error:
    pytest.skip(str(error), allow_module_level=True)


def test_the_daemon_shows_endpoints() -> None:
    with weft.Endpoint("a test of metrics") as endpoint:
        status = metrics.status()
        assert "a test of metrics" in str(status), status
        assert endpoint.address
    os.environ["WEFT_DAEMON_SOCKET"], former = "/nowhere/weft", os.environ["WEFT_DAEMON_SOCKET"]
    try:
        with pytest.raises(CommandFailed):
            metrics.status()
    finally:
        os.environ["WEFT_DAEMON_SOCKET"] = former


def test_metrics_of_a_daemon_are_read(tmp_path: Path) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = str(tmp_path / "weft.sock")
    environment = {**os.environ, "WEFT_DAEMON_SOCKET": own}
    command = [weft_command(), "daemon", "--metrics-listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as daemon:
        try:
            until = time.monotonic() + PATIENCE
            while not answers(own):
                assert time.monotonic() < until and daemon.poll() is None
                time.sleep(0.01)
            with weft.Endpoint("counted", socket=own):
                samples = metrics.scrape(f"http://127.0.0.1:{port}/metrics", PATIENCE)
        finally:
            daemon.terminate()
    endpoints = [one for one in samples if one.name == "weft_endpoints"]
    assert sum(one.value for one in endpoints) == 1, endpoints
    assert endpoints[0].labels["program"] == "counted"
    with pytest.raises(ValueError, match="http"):
        metrics.scrape("file:///etc/passwd")


def test_samples_are_read() -> None:
    text = '# HELP x y\n\na_total 5\nb{c="d\\"e\\\\",f="}\u2028"} +Inf 123\n'
    a, b = metrics.parse(text)
    assert a == ("a_total", {}, 5.0)
    assert b.labels == {"c": 'd"e\\', "f": "}\u2028"} and b.value == float("inf")
    with pytest.raises(ValueError):
        list(metrics.parse("no sample here"))
