# `make grade` grades all nine stages, `make test` runs the project's own tests.
# Both need python3 (3.11 or newer) only; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
VERSION = $(shell sed -n 's/^version: //p' CITATION.cff)

.PHONY: grade test test-course test-slow attacks mutants guide lint release clean

grade: .venv/.installed
	$(BIN)/python autograder.py
	$(BIN)/python autograder_optional.py

# All tests of a file by one worker: they share what its fixtures graded, built and installed.
test: .venv/.installed
	$(BIN)/python -m pytest -n auto --dist loadfile

# Without the tests of sink_attn, of its use in models and of the benchmarks.
test-course: .venv/.installed
	$(BIN)/python -m pytest -n auto --dist loadfile --ignore tests/kernels

# What takes minutes and guards no user's path: every kernel compiled, a share of the catalogue.
test-slow: .venv/.installed
	$(BIN)/python -m pytest -n auto -m slow

# Wrong, dishonest, destructive and honest submissions, and what the grader makes of them.
attacks: .venv/.installed
	$(BIN)/python -m attacks

# Which changes of a module its tests let pass, as in
# make mutants MODULE=grader/judge/points.py TESTS=tests/judge/test_points.py MOST=40
mutants: .venv/.mutants
	$(BIN)/python -m tools.mutants $(MODULE) $(TESTS) --most $(or $(MOST),0)

# The companion guide: guide/_build/html/index.html and guide/_build/guide.pdf.  SOLUTIONS=no leaves
# solved steps and answers out, for a class.
guide: .venv/.guide
	$(BIN)/python -m guide.build $(if $(filter no,$(SOLUTIONS)),--no-solutions)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -n auto -m style

# Tags the last commit with its version, if nothing is left to commit and the tests pass.
release:
	@test -z "$$(git status --porcelain)" || { echo "want all committed; see git status"; exit 1; }
	$(MAKE) lint test
	git tag --annotate "v$(VERSION)" --message "Version $(VERSION)"

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import grader'  # says so if it is too old
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

.venv/.guide: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[guide]"
	touch $@

.venv/.mutants: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[mutants]"
	touch $@

clean:
	rm -rf .venv *.egg-info guide/_build guide/text/drawn
