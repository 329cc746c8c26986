# `make help` lists the commands. Everything slow is kept in one folder outside the tree: $UNDERSTUDY_CACHE.
PY := scripts/py
# The Go programs of the tests (kubectl, helm, the API server) have small heaps: collect their garbage less often.
export GOGC ?= 400
CACHE := $(or $(UNDERSTUDY_CACHE),$(HOME)/.cache/understudy)
#: pytest with a JUnit file named after the target; `make test` reads the slowest tests from these files.
PYTEST = $(PY) -m pytest -q --junitxml build/junit/$@.xml
#: The oldest that pyproject.toml permits, and the newest. The other tests have that of tests/cluster/torch_install.py.
TORCHES := 2.6.0 2.15.0
.DEFAULT_GOAL := help
# Every target is a command: none names a file.
.PHONY: $(shell awk -F: '/^[a-z0-9-]+:.*## /{print $$1}' $(MAKEFILE_LIST))

help:  ## list the commands
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo:  ## a training job survives its faults on a real local Kubernetes; a table, and build/demo.json
	$(PY) -m tests.e2e.demo

test:  ## all tests of a change: check, integration, e2e on the real local cluster, simulation, torchrun, rollout: 20 minutes
	$(PY) -m tests.all test

smoke:  ## the inner loop: check, integration and a short story on the real local cluster
	$(PY) -m tests.all smoke

test-all:  ## every night: test, all injected kinds through all faults, arbitrary objects, new seeds, Kueue, engines, 50 kills
	$(PY) -m tests.all test-all

check:  ## ruff, types, import layers, drift of CRD, chart and docs, and beside these the unit tests: two minutes
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target static unit

static:  ## ruff, types, import layers, drift of CRD, chart and docs
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --cache-dir $(CACHE)/mypy
	$(PY) -c "from importlinter.cli import lint_imports_command as main; main()"
	$(PY) crds/generator/generate.py --check
	$(PY) scripts/protocol_docs.py --check
	$(PY) scripts/chart_values.py --check
	$(PY) scripts/metrics_docs.py --check
	$(PY) scripts/reference_docs.py --check
	$(PY) scripts/recovery_picture.py --check

tools:  ## install what unit tests need and the machine lacks: openssl, a C compiler, promtool
	$(PY) -m tests.cluster unit-tools

unit: tools  ## unit tests: pure, or of single processes
	$(PYTEST) -n 4 -m "not nightly" --timeout 300 --timeout-method thread tests/unit

# Real seconds say little here: in `make test` it computes with a small share of the CPU, beside all else.
simulation:  ## data plane, and operator, each in simulated time under seeded faults
	$(PYTEST) -n 2 --timeout 600 tests/simulation tests/simulation_operator

arbitrary:  ## the operator against arbitrary objects, EXAMPLES=n of each kind (default 20000)
	UNDERSTUDY_EXAMPLES=$(or $(EXAMPLES),20000) $(PYTEST) -n 2 tests/unit/operator/test_arbitrary_objects.py

simulate:  ## the data plane's with SEEDS=n seeds (default 2000) from FIRST=0 on, on all cores; RECORD=FILE appends the run to a file
	$(PY) -m tests.simulation --seeds $(or $(SEEDS),2000) --first-seed $(or $(FIRST),0) $(if $(RECORD),--record $(RECORD))

simulate-operator:  ## the operator against a faulty API server, with SEEDS=n seeds (default 5000) from FIRST=0 on; RECORD as above
	$(PY) -m tests.simulation_operator --seeds $(or $(SEEDS),5000) --first-seed $(or $(FIRST),0) $(if $(RECORD),--record $(RECORD))

integration: tools  ## CRD and operator against real API servers, one for each of WORKERS=n processes (default 4)
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.integration.cert_manager
	$(PYTEST) -n $(or $(WORKERS),4) --dist loadfile --timeout 180 tests/integration

integration-kubernetes: tools  ## integration against the other versions of Kubernetes in tests/cluster/kubernetes-*; not part of test
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.integration.cert_manager
	code=0; for version in $(patsubst tests/cluster/kubernetes-%,%,$(wildcard tests/cluster/kubernetes-*)); do \
	  export UNDERSTUDY_KUBERNETES=$$version; \
	  $(PY) -m tests.cluster.other_kubernetes && $(PY) -m pytest -q --junitxml build/junit/$@-$$version.xml \
	    -n $(or $(WORKERS),4) --dist loadfile --timeout 180 tests/integration || code=1; \
	done; exit $$code

kueue: tools  ## jobs in the queue of the real Kueue, built from its Go module, against a real API server; not part of test
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.kueue.build
	$(PYTEST) tests/kueue

ui:  ## the dashboard in a real Chromium, against a fake API server
	$(PY) -m tests.cluster chromium
	$(PYTEST) tests/ui

pictures:  ## pictures of a terminal and of the dashboard for the documentation, of a real local run, into docs/images
	$(PY) -m tests.cluster chromium
	$(PY) -m tests.ui.pictures

torchrun:  ## real torchrun processes, as members of a job whose sidecars the tests play
	$(PY) -m tests.cluster torch
	$(PYTEST) -n 2 -m "not nightly" tests/torchrun

gpu:  ## what the launcher promises about GPUs, on a machine that has one: needs a python3 with torch, or PYTHON=…
	PYTHONPATH=operator:sidecar $(or $(PYTHON),python3) -m tests.gpu

twelve-faults:  ## what `why` says about twelve faults, in real local runs: the table in docs/how-to/troubleshooting.md
	$(PY) -m tests.cluster torch
	$(PY) -m tests.torchrun.twelve_faults

rollout:  ## examples/rl: real processes, torch and gloo, weight updates that fail
	$(PY) -m tests.cluster torch
	$(PYTEST) tests/rollout

engines:  ## weight updates of a real SGLang and a real vLLM on the CPU, installed outside of the tree (7 GB); not part of test
	scripts/engines -m pytest -q -W ignore tests/engines

verl:  ## the doubles of verl's manager against verl's own sources, installed outside of the tree (2 MB); not part of test
	scripts/verl -m pytest -q tests/verl

frameworks:  ## DDP, FSDP2, HF Trainer, Accelerate, Lightning, DeepSpeed and JAX lose a worker and a node, installed outside of the tree (1 GB, and torch); a table; not part of test
	scripts/frameworks -m pytest -q --junitxml build/junit/$@.xml tests/frameworks $(if $(CASES),-k "$(CASES)")

attack: tools  ## all attacks of docs/explanation/security.md against the real programs; ends in a table: attack, before, now
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.integration.cert_manager
	$(PYTEST) -n 2 --dist loadfile --timeout 180 -m attack tests/unit tests/integration tests/simulation; code=$$?; \
	  $(PY) -m tests.attacks build/junit/$@.xml && exit $$code

e2e: e2e-lanes e2e-alone  ## real pods, real torch, real faults on the local cluster; E2E="FILE -k WORD" for some of them

e2e-lanes:  ## the e2e tests that run two at a time, each on its own nodes
ifdef E2E
	$(PYTEST) -m "not nightly" $(E2E)
else
	$(PYTEST) -n 2 -m "not nightly and not alone" tests/e2e
endif

e2e-alone:  ## the e2e tests that stop or replace the operator
ifndef E2E
	$(PYTEST) -m "not nightly and alone" tests/e2e
endif

e2e-nightly:  ## all injected kinds through all faults, and an operator of some namespaces
	$(PYTEST) -m nightly tests/e2e

nightly:  ## what is left out of unit and torchrun in `make test`: like cases
	$(PY) -m tests.cluster unit-tools
	$(PY) -m tests.cluster torch
	$(PYTEST) -n 2 -m nightly tests/unit tests/torchrun

pythons:  ## the launcher's process tests with Python 3.9 to 3.13, of PATH or pyenv, or installed by uv into the cache; not part of test
	$(PY) -m tests.pythons

torches:  ## torchrun's and rollout's tests with the oldest torch that is supported and the newest, installed into the cache (10 GB); not part of test
	code=0; for version in $(TORCHES); do \
	  export UNDERSTUDY_TORCH=$$version; \
	  $(PY) -m tests.cluster torch && $(PY) -m pytest -q --junitxml build/junit/$@-$$version.xml -n 2 tests/torchrun tests/rollout || code=1; \
	done; exit $$code

e2e-kills:  ## the operator is killed 50 times in the middle of claims on a pool, of each kind: twenty minutes
	UNDERSTUDY_KILLS=50 $(PYTEST) tests/e2e/test_pool.py -k no_kill

conformance:  ## of the e2e tests those that run JobSet's examples as TrainingJobs
	$(PYTEST) tests/e2e/test_conformance.py

soak:  ## HOURS=n (default 1) of trainings and an RL job under random faults on the local cluster; SEED=s; continues a run that was stopped
	$(PY) -m tests.soak --hours $(or $(HOURS),1) --seed $(or $(SEED),1)

cluster-up:  ## start the local cluster (4 nodes), or heal it
	$(PY) -m tests.cluster up

cluster-down:  ## stop the local cluster; nothing of it stays behind
	$(PY) -m tests.cluster down

cluster-status:  ## what of the local cluster runs
	$(PY) -m tests.cluster status

logs:  ## the logs of every pod and component, into build/logs
	$(PY) -m tests.cluster logs build/logs

bench-rendezvous:  ## how long a rendezvous takes, next to its peers: an hour; ARGS="--sizes 64 --runs 1" and the like
	$(PY) -m benchmarks.rendezvous $(ARGS)

bench-scale:  ## what a coordinator of up to 100,000 members costs, without sockets: a quarter of an hour; ARGS="--sizes 1024 --runs 1" and the like
	$(PY) -m benchmarks.scale $(ARGS)

bench-recovery:  ## how long until a training goes on after a fault, next to its peers, on network namespaces: hours, in parts with ARGS="--cases worker --resume" and the like
	$(PY) -m benchmarks.recovery $(ARGS)

bench-operator:  ## the operator at thousands of pods, next to JobSet, on an API server of its own: two hours; ARGS as above
	$(PY) -m benchmarks.operator $(ARGS)

bench-nodes:  ## what changes of nodes cost the operator, 500 jobs on 5,000 nodes: five minutes; ARGS="--runs 1" and the like
	$(PY) -m benchmarks.nodes $(ARGS)

bench-hostile:  ## whether callers without the key disturb a coordinator: 500 connections, 64 members; two minutes; ARGS="--seconds 5" and the like
	$(PY) -m benchmarks.hostile $(ARGS)

bench-snapshot:  ## how long a snapshot in memory blocks a training, and what the fault of a worker costs: three minutes; ARGS="--runs 3" and the like
	$(PY) -m benchmarks.snapshot $(ARGS)

bench-step:  ## what a call of understudy_torch.step() costs: half a minute
	$(PY) -m benchmarks.step $(ARGS)

bench-slow-ranks:  ## whether ordinary trainings with saves and evaluations name a slow rank, which would be wrong: an hour; ARGS="--minutes 5" and the like
	$(PY) -m tests.cluster torch
	$(PY) -m benchmarks.slow_ranks $(ARGS)

bench-rollout:  ## what a weight update and the gateway cost: three minutes; ARGS="--runs 3" and the like
	$(PY) -m benchmarks.rollout $(ARGS)

bench-pool:  ## from a node's power-off to the first step, by a pool's spare Warm, Replace, and without; and a verdict's way: 12 minutes
	$(PY) -m tests.e2e.prepare
	$(PY) -m benchmarks.pool $(ARGS)

bench-webhook:  ## how long the injection webhook takes for a pod, also while 1,000 hostile callers ask: two minutes
	$(PY) -m benchmarks.webhook $(ARGS)

bench-injection:  ## injected trainings through all faults, on the local cluster; KINDS="jobset or torchrun" runs some; each run adds samples
	UNDERSTUDY_BENCH_RESULTS=benchmarks/results $(PYTEST) tests/e2e/test_inject.py $(if $(KINDS),-k "$(KINDS)")

bench-dashboard:  ## whether the page of the dashboard stalls a browser, with 500 jobs and with 5,000 pods: three minutes; ARGS="--runs 1" and the like
	$(PY) -m tests.cluster chromium
	$(PY) -m benchmarks.dashboard $(ARGS)

bench-docs:  ## write the tables of benchmarks.md, comparison.md and README.md from benchmarks/results
	$(PY) -m benchmarks.docs

release:  ## images, chart, wheel, kubectl plugin, checksums, SBOMs and provenance, into build/release
	$(PY) -m tests.cluster binaries
	scripts/release -m release

scan:  ## known vulnerabilities of the locked dependencies, except those that release/allowed.toml names; needs PyPI
	scripts/release -m release.scan

images:  ## build the operator's and the sidecar's image, and load them into the local cluster
	$(PY) -m tests.cluster images

crds:  ## generate crds/ from crds/generator/v1alpha1
	$(PY) crds/generator/generate.py

chart:  ## generate the chart's values.schema.json and the tables of docs/reference/values.md from its values.yaml
	$(PY) scripts/chart_values.py

docs:  ## generate docs/reference, the tables of protocol.md, and the picture of a recovery
	$(PY) scripts/protocol_docs.py
	$(PY) scripts/metrics_docs.py
	$(PY) scripts/reference_docs.py
	$(PY) scripts/recovery_picture.py

site:  ## build the documentation site into build/site, and fail if a page is not in the navigation or a link is dead
	scripts/site build --strict --quiet --site-dir build/site

site-serve:  ## serve the documentation site on http://127.0.0.1:8000, and rebuild it when a page changes
	scripts/site serve --strict

lock:  ## lock the dependencies anew: requirements/*.in -> *.lock
	for name in pip operator sidecar cli release site dev; do \
	  $(PY) -m uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate -o requirements/$$name.lock requirements/$$name.in; \
	done
	$(PY) -m uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate --config-file requirements/engines.toml \
	  --override requirements/engines.overrides -o requirements/engines.lock requirements/engines.in
	$(PY) -m uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate --override requirements/frameworks.overrides \
	  -o requirements/frameworks.lock requirements/frameworks.in
	$(PY) -m uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate --no-deps -o requirements/verl.lock requirements/verl.in

format:  ## format the code, and mend what ruff can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:  ## remove what was built in the tree; the cache stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
