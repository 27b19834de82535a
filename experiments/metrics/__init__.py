"""What a life is worth, in numbers: pure functions on NumPy arrays, float64 throughout.

``lifetime``: score and regret; ``recovery`` after a change; ``retention`` by age; ``recurrence`` of regimes;
``adaptation`` inside a life; ``transfer`` and forgetting over a sequence of tasks; ``plasticity`` of a network;
``aggregate``: over seeds, lives and environments.

Scores are normalised: 0 is the random policy and 1 the oracle.
"""
