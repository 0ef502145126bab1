# LLM Inference Economics. Every target works on a fresh clone with Python 3.11, make and pip.
#   make book    build the site into _build/html        make test    verify everything in it
#   make exercises   write what students receive from exercises/source
#   make long    the same tests, larger settings        make lint    style and types only
#   make clean   remove what was built, .venv too       make settings  apply a change of book.toml
PYTHON ?= python3.11
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=300 --nbval-sanitize-with=tests/sanitize.cfg

.PHONY: book test exercises long lint settings clean

.venv/installed: requirements.txt tools/setup.sh
	@tools/setup.sh $(PYTHON)
	@touch $@

book: .venv/installed
	@$(PY) tools/book.py

test: lint
	@echo "==> unit tests and doctests"
	@$(PYTEST) -m "not timing and not long"
	@echo "==> chapters: run every cell and compare with the stored output"
	@$(PYTEST) $(NBVAL) chapters
	@echo "All tests passed."

exercises: .venv/installed
	@$(PY) tools/release.py
	@$(PY) tools/tables.py

long: lint
	@echo "==> every test, larger settings"
	@HYPOTHESIS_PROFILE=long $(PYTEST)
	@$(PYTEST) $(NBVAL) chapters

lint: .venv/installed
	@echo "==> ruff, mypy"
	@$(PY) -m ruff check
	@$(PY) -m mypy

settings: .venv/installed
	@$(PY) tools/settings.py
	@$(PY) tools/release.py

clean:
	rm -rf _build .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
