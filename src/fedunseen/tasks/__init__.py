"""Tasks: which samples clients hold, what a round is judged by, what a run reports, and how it
predicts.
"""

TASKS = {
    "zero-shot": "fedunseen.tasks.zero_shot:ZeroShot",
    "few-shot": "fedunseen.tasks.few_shot:FewShot",
    "any-shot": "fedunseen.tasks.any_shot:AnyShot",
}
