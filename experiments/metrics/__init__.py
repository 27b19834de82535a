"""What a life is worth, in numbers: pure functions on NumPy arrays, float64 throughout.

``lifetime``: score and regret; ``recovery`` after a change; ``retention`` by age; ``recurrence`` of regimes;
``adaptation`` inside a life; ``transfer`` and forgetting over a sequence of tasks; ``plasticity`` of a network;
``aggregate``: over seeds, lives and environments.

Scores are normalised: 0 is the random policy and 1 the oracle.

Where the commands use them:

``lifelong compare``   ``aggregate`` (interquartile mean and its interval)
``lifelong evaluate``  ``lifetime.lifetime_score``; ``recovery.recovery_times``, step by step
``lifelong report``    all of ``aggregate``; ``lifetime.normalised_score``; ``recovery.kaplan_meier``;
                       ``retention``: ``chance_corrected``, ``half_life``, ``decades_remembered``

The rest is for users' own series, which no command has: ``lifetime_average`` and ``dynamic_regret``; ``drops``;
``retention_curve`` and ``decades_remembered_by_group`` (of single queries, where an evaluation keeps counts);
``adaptation`` (of the returns of single episodes, where an evaluation keeps the reward by steps since a change, which
``report`` draws); ``recurrence``; ``transfer``; ``plasticity``.
"""
