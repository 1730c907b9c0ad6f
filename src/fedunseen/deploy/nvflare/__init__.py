"""Engine "nvflare": NVIDIA FLARE carries what FedUnseen sends, on its public interfaces alone.

In an existing federation of NVFlare, and in its simulator, FedUnseen is a job
(:mod:`fedunseen.deploy.nvflare_job`).
"""
