"""The environment names versions and processor, and neither the machine nor its user."""

import getpass
import importlib.metadata
import json
import platform

from softcarry.auditing.environment import describe_environment


def test_versions_are_those_installed():
    found = describe_environment()
    assert found["libraries"]["numpy"] == importlib.metadata.version("numpy")
    assert found["python"] == platform.python_version()
    assert found["threads"] >= 1
    assert found["cpu"]


def test_nothing_names_the_machine_or_its_user():
    text = json.dumps(describe_environment())
    assert platform.node() not in text or len(platform.node()) < 3
    assert f'"{getpass.getuser()}"' not in text
