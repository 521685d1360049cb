PYTHON ?= python3
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/colossalai-checkpoint-patch

TORCH := 2.13.0
RELEASE := 0.5.0
UV := 0.13.9
JOBS := 2
# Where PyPI's torch is gigabytes of CUDA: make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX :=
REQUIREMENTS := $(sort $(wildcard requirements/*.txt))
PACKAGE := setup.py pyproject.toml colossalai_patch.pth

# The official environment takes minutes and gigabytes, so it outlives the checkout; its key is what went into it.
OFFICIAL := $(CACHE)/official-$(shell cat requirements/requirements.txt requirements/requirements-test.txt requirements/constraints-official.txt | $(PYTHON) -c 'import hashlib, sys; \
	print("%d.%d-" % sys.version_info[:2] + hashlib.sha256(sys.stdin.buffer.read() + b"$(RELEASE)").hexdigest()[:12])')

INSTALL := pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PIN := $(CACHE)/uv-$(UV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-annotate --custom-compile-command 'make pins'
# A file stays in one worker, which makes its fixtures once; two workers with two threads each would wait for each other.
IN_PARALLEL := --numprocesses $(JOBS) --dist loadfile
CORE := tests/test_optimizer_checkpoint tests/test_cli/test_commands.py tests/test_slicing.py tests/test_holding.py tests/test_silence.py
test quick test-official test-newest: export OMP_NUM_THREADS := 1

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help venv test quick test-official test-newest test-releases claims mismatches fuzz regression regression-plugins crash demo pictures bench pins lint wheel clean

help:
	@sed -n 's/^#: //p' Makefile

#: make test           the suite, in .venv (torch 2.13, ColossalAI 0.5.0)
test: venv
	.venv/bin/pytest $(IN_PARALLEL)

#: make quick          what needs no ColossalAI and does not take long, in a minute
quick: venv
	.venv/bin/pytest --numprocesses $(JOBS) --dist worksteal -m 'not slow' $(CORE)

#: make test-official  the suite on ColossalAI 0.5.0 with the versions that it pins (torch 2.5.1), in a cached environment
test-official: $(OFFICIAL)/.installed wheel
	$(OFFICIAL)/bin/pip install --quiet --no-deps --force-reinstall dist/*.whl
	$(OFFICIAL)/bin/pytest $(IN_PARALLEL)

#: make test-newest    the suite on the newest version of everything, in an environment that is made anew
test-newest: wheel
	$(PYTHON) -m venv --clear $(CACHE)/newest
	$(CACHE)/newest/bin/$(INSTALL) torch
	$(CACHE)/newest/bin/pip install --quiet --no-deps colossalai
	$(CACHE)/newest/bin/pip install --quiet -r requirements/requirements-colossalai.txt -r requirements/requirements-test.txt dist/*.whl
	$(CACHE)/newest/bin/pip download --quiet --no-deps --no-binary colossalai --dest $(CACHE)/newest/sources colossalai
	$(CACHE)/newest/bin/pytest $(IN_PARALLEL)

#: make test-releases  the regression suite and a sample of the differential one, on every release it is tested on
test-releases: venv
	.venv/bin/python tests/releases.py $(CACHE)/releases

#: make claims         what the README says of stock and of this, with the patch off and on
claims: venv
	COLOSSALAI_PATCH=off .venv/bin/python -W ignore tests/claims.py
	.venv/bin/python -W ignore tests/claims.py

#: make mismatches     the differential suite with the patch off: how many cases differ from native
mismatches: venv
	.venv/bin/python tests/mismatches.py

#: make fuzz           5,000 spoilt checkpoints: each loads as natively or is refused
fuzz: venv
	.venv/bin/python -W ignore tests/fuzz.py 5000

#: make regression     the regression suite with the patch off and on: 16 failed, 9 passed, and 25 passed
regression: venv
	.venv/bin/python tests/regression.py

#: make regression-plugins  the tests of the plugins' loaders and savers with the patch off and on, in ten minutes
regression-plugins: venv
	.venv/bin/python tests/regression.py plugins

#: make crash          saves that are killed 200 times, and what they leave: no loss, no mixture
crash: venv
	.venv/bin/python -W ignore tests/crash.py --kills 200

#: make demo           the example training run: rolled back by stock, patched and native
demo: venv
	.venv/bin/python examples/rollback.py

#: make pictures       the pictures in docs/ anew, with the figures behind them
pictures: venv
	.venv/bin/python examples/rollback.py docs/rollback.png
	.venv/bin/python benchmarks/load.py --output docs

#: make bench          the measurements, in an hour; load.json and load.png in benchmarks/results
bench: venv
	.venv/bin/python benchmarks/start_up.py
	.venv/bin/python benchmarks/save.py
	.venv/bin/python -W ignore benchmarks/shared_read.py
	.venv/bin/python benchmarks/load.py --output benchmarks/results

#: make pins           requirements/constraints-*.txt anew: the newest versions that fit together
pins: $(CACHE)/uv-$(UV)/.installed
	echo torch==$(TORCH) | $(PIN) --output-file requirements/constraints-test.txt - requirements/requirements-colossalai.txt \
		requirements/requirements.txt requirements/requirements-test.txt
	echo colossalai==$(RELEASE) | $(PIN) --output-file requirements/constraints-official.txt - \
		requirements/requirements.txt requirements/requirements-test.txt

#: make lint           what pre-commit checks
lint: venv
	.venv/bin/pre-commit run --all-files

#: make wheel          the wheel, in dist/
wheel: venv
	rm -rf build dist
	.venv/bin/python -m build --wheel --no-isolation --outdir dist . >/dev/null

#: make clean          away with .venv and what was built
clean:
	rm -rf .venv build dist *.egg-info

venv: .venv/.installed

.venv/.installed: $(REQUIREMENTS) $(PACKAGE)
	$(PYTHON) -m venv .venv
	.venv/bin/$(INSTALL) -c requirements/constraints-test.txt torch
	.venv/bin/pip install --quiet --no-deps colossalai==$(RELEASE)
	.venv/bin/pip install --quiet -c requirements/constraints-test.txt \
		-r requirements/requirements.txt -r requirements/requirements-colossalai.txt -r requirements/requirements-test.txt
	.venv/bin/pip download --quiet --no-deps --no-binary colossalai --dest .venv/sources colossalai==$(RELEASE)
	.venv/bin/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(OFFICIAL)/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/$(INSTALL) -c requirements/constraints-official.txt \
		colossalai==$(RELEASE) -r requirements/requirements.txt -r requirements/requirements-test.txt
	$(@D)/bin/pip download --quiet --no-deps --no-binary colossalai --dest $(@D)/sources colossalai==$(RELEASE)
	touch $@

$(CACHE)/uv-$(UV)/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet uv==$(UV)
	touch $@
