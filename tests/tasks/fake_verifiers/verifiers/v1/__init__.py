"""Tasksets."""

import copy
from types import SimpleNamespace

UserMessage = SystemMessage = AssistantMessage = MessageNode = TraceTask = AgentInfo = AgentConfig = SimpleNamespace


class TaskData:
    def __init__(self, **fields):
        vars(self).update({"idx": None, "prompt": None, "system_prompt": None, **fields})

    def model_dump(self, mode, exclude_defaults):
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def model_validate(cls, fields):
        return cls(**fields)


def reward(weight=1.0):
    def mark(function):
        function.reward, function._vf_weight = True, weight
        return function

    return mark


def metric(function):
    function.metric = True
    return function


class Task:
    NEEDS_CONTAINER = False

    def __init__(self, data, config=None):
        self.data, self.config = data, config or SimpleNamespace(judges=[])

    async def setup(self, trace, runtime): ...

    async def finalize(self, trace, runtime): ...

    @classmethod
    def toolsets(cls, config):
        return []

    def hooks(self, kind):
        return [getattr(self, name) for name in sorted(dir(type(self))) if hasattr(getattr(type(self), name), kind)]

    async def score(self, trace):
        for one in self.hooks("metric"):
            trace.metrics[one.__name__] = await one(trace)
        for one in self.hooks("reward"):
            trace.rewards[one.__name__] = SimpleNamespace(value=one._vf_weight * float(await one(trace)))


class Trace:
    def __init__(self, task, agent, nodes):
        self.nodes, self.rewards, self.metrics = nodes, {}, {}
        self.last_reply = nodes[-1].message.content

    @property
    def reward(self):
        return sum(one.value for one in self.rewards.values())


class TasksetConfig:
    def __init__(self, id, **options):
        for name in options:
            if not hasattr(self, name):
                raise ValueError(f"{name}: Extra inputs are not permitted")
        vars(self).update(options)
        self.id, self.task = id, SimpleNamespace(judges=[])


class Taskset:
    INFINITE = False
    config_type = TasksetConfig

    def __init__(self, config):
        self.config = config

    def __iter__(self):
        for place, task in enumerate(self.load()):
            task = copy.copy(task)
            task.data.idx = place
            yield task

    @classmethod
    def toolsets(cls, config):
        return []


class SingleAgentEnv: ...
