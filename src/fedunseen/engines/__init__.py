"""Engines: where clients run. They share two functions: a client's round and the strategy's merge.

``local`` runs all clients in this process, ``remote`` has them in other processes, on this machine or elsewhere,
``carriers`` bring the messages there and back, and ``offline`` has files in their place.
"""

ENGINES = {
    "in-process": "fedunseen.engines.local.in_process:InProcess",
    "buffered": "fedunseen.engines.local.buffered:Buffered",
    "websocket": "fedunseen.engines.remote.coordinator:WebSocket",
    "flower": "fedunseen.engines.remote.coordinator:Flower",
    "nvflare": "fedunseen.engines.remote.coordinator:NVFlare",
    "offline": "fedunseen.engines.offline.coordinator:Offline",
}
