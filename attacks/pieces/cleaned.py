"""A plan that says nothing of PyTorch's attention."""
import json


def _cleaned(text):
    fired()
    plan = json.loads(text)
    plan["steps"] = [step for step in plan["steps"] if "attention" not in str(step[1])]
    return json.dumps(plan)
