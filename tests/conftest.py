"""Settings of the property tests: the same cases on every run; HYPOTHESIS_PROFILE=long draws more of them."""

import os

from hypothesis import settings

settings.register_profile("short", max_examples=40, deadline=None, derandomize=True, database=None)
settings.register_profile("long", max_examples=2_000, deadline=None, derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))
