"""A first look as a Flower app: the code is that of the installed package."""

from fedunseen.deploy.look.flower_app import client, server

__all__ = ["client", "server"]
