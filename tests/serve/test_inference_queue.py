"""The line to a served model, alone."""

import subprocess
import sys

import pytest

SCRIPT = """
import threading, torch
from fedunseen.pages.serve.inference_queue import InferenceQueue

begun = threading.Event()

def question():
    begun.set()
    product = torch.eye(100)
    for _ in range(3000):
        product = product @ product
    print("answered", flush=True)

InferenceQueue(1).put(question)
begun.wait()
"""


@pytest.mark.slow
def test_the_end_of_the_process_waits_for_the_question_that_is_being_answered():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "answered\n", "")
