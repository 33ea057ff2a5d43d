"""Tasksets by their names."""

import importlib

from verifiers.v1 import SingleAgentEnv, Taskset


def exported(name):
    module = importlib.import_module(name.replace("-", "_"))
    return [getattr(module, one) for one in module.__all__]


def taskset_class(name):
    return next(one for one in exported(name) if issubclass(one, Taskset))


def environment_class(name):
    return next((one for one in exported(name) if not issubclass(one, Taskset)), SingleAgentEnv)


def default_harness_id(name):
    return "bash"


def taskset_config_type(name):
    return taskset_class(name).config_type


def load_taskset(config):
    return taskset_class(config.id)(config)
