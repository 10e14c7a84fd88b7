"""Runs the bodies of tests in the process of the fixture `devices`, which has the stand-in accelerator."""

import importlib

import accelerator
import torch


def on_devices(body):
    """A test whose body runs there, and finds the devices as if it were the first."""

    def test(devices):
        __tracebackhide__ = True
        devices.run(_run_body, body.__module__, body.__name__)

    test.__name__, test.__doc__, test.__module__, test.body = body.__name__, body.__doc__, body.__module__, body
    return test


def _run_body(module, name):
    extension = accelerator.load()
    for device in range(extension.device_count()):
        extension.recover(device)
        extension.synchronize(device)
    extension.reset_waits()
    getattr(importlib.import_module(module), name).body()


def stream_on(device):
    return torch.Stream(f"standin:{device}")


def is_poison(tensor):
    return bool(tensor.isnan().all())


def waits():
    """Of the host for the devices: how many, by kind, by thread."""
    return accelerator.load().stats()["waits"]
