PYTHON ?= python3
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/colossalai-checkpoint-patch

TORCH := 2.13.0
RELEASE := 0.5.0
REQUIREMENTS := $(sort $(wildcard requirements/*.txt))
PACKAGE := setup.py pyproject.toml colossalai_patch.pth

# The official environment takes minutes and gigabytes, so it outlives the checkout; its key is what went into it.
OFFICIAL := $(CACHE)/official-$(shell cat requirements/requirements.txt requirements/requirements-test.txt | $(PYTHON) -c 'import hashlib, sys; \
	print("%d.%d-" % sys.version_info[:2] + hashlib.sha256(sys.stdin.buffer.read() + b"$(RELEASE)").hexdigest()[:12])')

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help venv test test-official test-releases claims mismatches fuzz regression regression-plugins crash demo bench lint wheel clean

help:
	@sed -n 's/^#: //p' Makefile

#: make test           the suite, in .venv (torch 2.13, ColossalAI 0.5.0)
test: venv
	.venv/bin/pytest

#: make test-official  the suite on ColossalAI 0.5.0 with the versions that it pins (torch 2.5.1), in a cached environment
test-official: $(OFFICIAL)/.installed wheel
	$(OFFICIAL)/bin/pip install --quiet --no-deps --force-reinstall dist/*.whl
	$(OFFICIAL)/bin/pytest

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

#: make bench          the measurements, in an hour; load.json and load.png in benchmarks/results
bench: venv
	.venv/bin/python benchmarks/start_up.py
	.venv/bin/python benchmarks/save.py
	.venv/bin/python -W ignore benchmarks/shared_read.py
	.venv/bin/python benchmarks/load.py --output benchmarks/results

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
	.venv/bin/pip install --quiet torch==$(TORCH)
	.venv/bin/pip install --quiet --no-deps colossalai==$(RELEASE)
	.venv/bin/pip install --quiet -r requirements/requirements-colossalai.txt -r requirements/requirements-test.txt
	.venv/bin/pip download --quiet --no-deps --no-binary colossalai --dest .venv/sources colossalai==$(RELEASE)
	.venv/bin/pip install --quiet -e .
	touch $@

$(OFFICIAL)/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet colossalai==$(RELEASE) -r requirements/requirements.txt -r requirements/requirements-test.txt
	$(@D)/bin/pip download --quiet --no-deps --no-binary colossalai --dest $(@D)/sources colossalai==$(RELEASE)
	touch $@
