"""This repository's own set-up: pytest's pytester for the tests of the plugin."""

pytest_plugins = ("pytester",)
