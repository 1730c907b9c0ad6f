"""FedUnseen as a Flower app: the code is that of the installed package."""

from fedunseen.deploy.flower_app import client, server

__all__ = ["client", "server"]
