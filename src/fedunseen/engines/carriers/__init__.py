"""Carriers: how messages reach parties in other processes, by WebSockets, by Flower or by NVFlare."""
