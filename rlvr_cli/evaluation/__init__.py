"""Evaluation as one pipe; `rlvr eval RUN --pass-at 32` goes through these modules in this order.

- ``jobs``: what the user asks for becomes jobs (models x problems x settings), all checked before anything is loaded;
- ``problems``: the problems of each job are read;
- ``run``: every model is loaded once (``loading``) for all its jobs;
- ``sampling``, ``served``: a sampler fills the ``store`` with what is missing, each completion with its verdict;
- ``evaluate``, ``metrics``: samples become numbers with intervals, on the disk;
- ``tables``, ``overview``: what is printed.

`rlvr score` (``score``) and `rlvr tasks filter` (``filter``) use pieces of it.
"""
