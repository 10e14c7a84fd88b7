"""The fork server of test/python, where these tests run without its own."""

import harness


def pytest_configure(config):
    harness.start_fork_server()
