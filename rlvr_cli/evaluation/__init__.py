"""The evaluation pipeline; `rlvr eval RUN --pass-at 32` passes through these modules in this order.

- ``jobs``: turn the request into jobs (models x problems x settings), checked before anything is loaded;
- ``problems``: read the problems of each job;
- ``run``: load each model once (``loading``) for all its jobs;
- ``sampling``, ``served``: sample and judge the completions that the ``sample_store`` lacks;
- ``evaluate``, ``estimates``: compute metrics with intervals, and write them;
- ``tables``, ``overview``: format the results.

`rlvr score` (``score``) and `rlvr tasks filter` (``filter``) share modules with it.
"""
