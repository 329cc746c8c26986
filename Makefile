# `make help` lists the commands. Downloads and slow builds stay in one folder outside the tree: $UNDERSTUDY_CACHE.
PY := scripts/py
# The Go programs of the tests (kubectl, helm, the API server) have small heaps: collect their garbage less often.
export GOGC ?= 400
CACHE := $(or $(UNDERSTUDY_CACHE),$(HOME)/.cache/understudy)
#: pytest with a JUnit file named after the target; `make test` reads the slowest tests from these files.
PYTEST = $(PY) -m pytest -q --junitxml build/junit/$@.xml
#: The oldest torch that pyproject.toml permits, and the newest. Other tests use that of tests/cluster/torch_install.py.
TORCHES := 2.6.0 2.15.0
.DEFAULT_GOAL := help
# Every target is a command: none names a file.
.PHONY: $(shell awk -F: '/^[a-z0-9-]+:.*## /{print $$1}' $(MAKEFILE_LIST))

help:  ## list all commands
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo:  ## cause five kinds of faults in a training job on a real local Kubernetes; print a table and write build/demo.json
	$(PY) -m tests.e2e.demo

test:  ## run all tests that a change has to pass, in half an hour: check, integration, ui, simulation, torchrun, rollout, e2e
	$(PY) -m tests.all test

smoke:  ## run check, integration and a short e2e test, for use while you write code
	$(PY) -m tests.all smoke

test-all:  ## run test, and the nightly tests, which take hours
	$(PY) -m tests.all test-all

check:  ## run static and unit at the same time, in two minutes
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target static unit

static:  ## run ruff, mypy and import-linter; check that generated files (CRDs, chart, docs) are up to date
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

tools:  ## install the tools that unit tests need and the machine does not have: openssl, a C compiler, nginx, promtool
	$(PY) -m tests.cluster unit-tools

unit: tools  ## run the unit tests
	$(PYTEST) -n 4 -m "not nightly" --timeout 300 --timeout-method thread tests/unit

# The timeout is long, because in `make test` this target gets a small share of the CPU.
simulation:  ## run the data plane and the operator in simulated time under seeded faults
	$(PYTEST) -n 2 --timeout 600 tests/simulation tests/simulation_operator

arbitrary:  ## run the operator with arbitrary objects; EXAMPLES=n of each kind (default 20000)
	UNDERSTUDY_EXAMPLES=$(or $(EXAMPLES),20000) $(PYTEST) -n 2 tests/unit/operator/test_arbitrary_objects.py

simulate:  ## run more seeds of the data plane's simulation on all cores: SEEDS=n (default 2000), FIRST=n (default 0); RECORD=FILE appends the result to a file
	$(PY) -m tests.simulation --seeds $(or $(SEEDS),2000) --first-seed $(or $(FIRST),0) $(if $(RECORD),--record $(RECORD))

simulate-operator:  ## run more seeds of the operator's simulation: SEEDS=n (default 5000), FIRST and RECORD as in simulate
	$(PY) -m tests.simulation_operator --seeds $(or $(SEEDS),5000) --first-seed $(or $(FIRST),0) $(if $(RECORD),--record $(RECORD))

integration: tools  ## test the CRDs and the operator against real API servers; WORKERS=n processes (default 4), each with its own API server
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.integration.cert_manager
	$(PYTEST) -n $(or $(WORKERS),4) --dist loadfile --timeout 180 tests/integration

integration-kubernetes: tools  ## run integration against the other supported versions of Kubernetes; not part of test
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.integration.cert_manager
	code=0; for version in $(patsubst tests/cluster/kubernetes-%,%,$(wildcard tests/cluster/kubernetes-*)); do \
	  export UNDERSTUDY_KUBERNETES=$$version; \
	  $(PY) -m tests.cluster.other_kubernetes && $(PY) -m pytest -q --junitxml build/junit/$@-$$version.xml \
	    -n $(or $(WORKERS),4) --dist loadfile --timeout 180 tests/integration || code=1; \
	done; exit $$code

kueue: tools  ## test jobs in queues of a real Kueue, against a real API server; not part of test
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.kueue.build
	$(PYTEST) tests/kueue

ui:  ## test the dashboard in a real Chromium, against a fake API server
	$(PY) -m tests.cluster chromium
	$(PYTEST) tests/ui

pictures:  ## take the pictures of the documentation from a real local run; writes docs/images
	$(PY) -m tests.cluster chromium
	$(PY) -m tests.ui.pictures

torchrun:  ## test real torchrun processes with simulated sidecars
	$(PY) -m tests.cluster torch
	$(PYTEST) -n 2 -m "not nightly" tests/torchrun

gpu:  ## test the launcher on a machine with a GPU; PYTHON=FILE is a Python with torch (default python3)
	PYTHONPATH=operator:sidecar $(or $(PYTHON),python3) -m tests.gpu

twelve-faults:  ## run `why` after twelve faults, and write its output into docs/how-to/troubleshooting.md
	$(PY) -m tests.cluster torch
	$(PY) -m tests.torchrun.twelve_faults

rollout:  ## test failing weight updates of examples/rl with real processes, torch and gloo
	$(PY) -m tests.cluster torch
	$(PYTEST) tests/rollout

engines:  ## test weight updates with a real SGLang and a real vLLM on the CPU (installs 7 GB into the cache); not part of test
	scripts/engines -m pytest -q -W ignore tests/engines

verl:  ## check the tests' doubles of verl's manager against verl's sources (downloads 2 MB); not part of test
	scripts/verl -m pytest -q tests/verl

frameworks:  ## test DDP, FSDP2, HF Trainer, Accelerate, Lightning, DeepSpeed and JAX with the loss of a worker and of a node; print a table (installs 1 GB and torch into the cache); CASES=WORD runs some; not part of test
	scripts/frameworks -m pytest -q --junitxml build/junit/$@.xml tests/frameworks $(if $(CASES),-k "$(CASES)")

attack: tools  ## run the tests of the attacks in docs/explanation/security.md; print a table: attack, before, now
	$(PY) -m tests.cluster binaries
	$(PY) -m tests.integration.cert_manager
	$(PYTEST) -n 2 --dist loadfile --timeout 180 -m attack tests/unit tests/integration tests/simulation; code=$$?; \
	  $(PY) -m tests.attacks build/junit/$@.xml && exit $$code

e2e: e2e-lanes e2e-alone  ## test real pods, real torch and real faults on the local cluster; E2E="FILE -k WORD" runs some of the tests

e2e-lanes:  ## run the e2e tests that can run two at a time, each on its own nodes
ifdef E2E
	$(PYTEST) -m "not nightly" $(E2E)
else
	$(PYTEST) -n 2 -m "not nightly and not alone" tests/e2e
endif

e2e-alone:  ## run the e2e tests that stop or replace the operator
ifndef E2E
	$(PYTEST) -m "not nightly and alone" tests/e2e
endif

e2e-nightly:  ## run the e2e tests that only test-all has: all injected kinds through all faults, and an operator of some namespaces
	$(PYTEST) -m nightly tests/e2e

nightly:  ## run the cases of unit and torchrun that only test-all has
	$(PY) -m tests.cluster unit-tools
	$(PY) -m tests.cluster torch
	$(PYTEST) -n 2 -m nightly tests/unit tests/torchrun

pythons:  ## run the launcher's tests with Python 3.9 to 3.13 (from PATH, pyenv or uv); not part of test
	$(PY) -m tests.pythons

torches:  ## run torchrun and rollout with the oldest and the newest supported torch (installs 10 GB into the cache); not part of test
	code=0; for version in $(TORCHES); do \
	  export UNDERSTUDY_TORCH=$$version; \
	  $(PY) -m tests.cluster torch && $(PY) -m pytest -q --junitxml build/junit/$@-$$version.xml -n 2 tests/torchrun tests/rollout || code=1; \
	done; exit $$code

e2e-kills:  ## kill the operator 50 times while it claims spares of a pool, in 20 minutes
	UNDERSTUDY_KILLS=50 $(PYTEST) tests/e2e/test_pool.py -k no_kill

conformance:  ## run JobSet's examples as TrainingJobs on the local cluster
	$(PYTEST) tests/e2e/test_conformance.py

soak:  ## run trainings and an RL job under random faults on the local cluster; HOURS=n (default 1), SEED=n; continues a run that was stopped
	$(PY) -m tests.soak --hours $(or $(HOURS),1) --seed $(or $(SEED),1)

cluster-up:  ## start or repair the local cluster of 4 nodes
	$(PY) -m tests.cluster up

cluster-down:  ## stop all processes of the local cluster
	$(PY) -m tests.cluster down

cluster-status:  ## show which parts of the local cluster run
	$(PY) -m tests.cluster status

logs:  ## write the logs of all pods and components of the local cluster to build/logs
	$(PY) -m tests.cluster logs build/logs

bench-rendezvous:  ## measure the time of a rendezvous next to its peers, in an hour; ARGS="--sizes 64 --runs 1"
	$(PY) -m benchmarks.rendezvous $(ARGS)

bench-scale:  ## measure the cost of a coordinator of up to 100,000 members, without sockets, in 20 minutes; ARGS="--sizes 1024 --runs 1"
	$(PY) -m benchmarks.scale $(ARGS)

bench-recovery:  ## measure the time from a fault until the training continues, next to its peers, in hours; ARGS="--cases worker --resume" runs a part
	$(PY) -m benchmarks.recovery $(ARGS)

bench-operator:  ## measure the operator with thousands of pods next to JobSet, in three hours; ARGS as above
	$(PY) -m benchmarks.operator $(ARGS)

bench-nodes:  ## measure the operator's CPU time for changes of nodes (500 jobs on 5,000 nodes), in five minutes; ARGS="--runs 1"
	$(PY) -m benchmarks.nodes $(ARGS)

bench-fleet:  ## measure the operator with 5,000 nodes and 20,000 pods and with a tenth, with heartbeats and faults, in an hour; ARGS="--pods 2000 --jobs 50 --nodes 500 --minutes 1"
	$(PY) -m benchmarks.fleet $(ARGS)

bench-hostile:  ## measure whether 500 connections without the key disturb a coordinator of 64 members, in two minutes; ARGS="--seconds 5"
	$(PY) -m benchmarks.hostile $(ARGS)

bench-snapshot:  ## measure the cost of snapshots in memory, and what a lost worker or node costs, in a quarter of an hour; ARGS="--runs 3"
	$(PY) -m benchmarks.snapshot $(ARGS)

bench-step:  ## measure the cost of a call of understudy_torch.step(), in half a minute
	$(PY) -m benchmarks.step $(ARGS)

bench-slow-ranks:  ## check that ordinary trainings with saves and evaluations report no slow rank, in an hour; ARGS="--minutes 5"
	$(PY) -m tests.cluster torch
	$(PY) -m benchmarks.slow_ranks $(ARGS)

bench-detection:  ## measure how soon a machine without power is found, and count false alarms, in half an hour; ARGS="--minutes 1 --runs 3"
	$(PY) -m benchmarks.detection $(ARGS)

bench-rollout:  ## measure the cost of a weight update, and of the gateway next to nginx, in ten minutes; ARGS="--runs 3"
	$(PY) -m benchmarks.rollout $(ARGS)

bench-pool:  ## measure the time from a node's power-off to the first step, with and without a spare of a pool, and the time to deliver a verdict, in 12 minutes
	$(PY) -m tests.e2e.prepare
	$(PY) -m benchmarks.pool $(ARGS)

bench-webhook:  ## measure the time of an injection, also while 1,000 hostile callers send requests, in two minutes
	$(PY) -m benchmarks.webhook $(ARGS)

bench-injection:  ## measure the recovery of injected trainings from all faults on the local cluster; KINDS="jobset or torchrun" runs some; each run adds samples
	UNDERSTUDY_BENCH_RESULTS=benchmarks/results $(PYTEST) tests/e2e/test_inject.py $(if $(KINDS),-k "$(KINDS)")

bench-dashboard:  ## measure whether the dashboard's page blocks a browser, with 500 jobs and with 5,000 pods, in three minutes; ARGS="--runs 1"
	$(PY) -m tests.cluster chromium
	$(PY) -m benchmarks.dashboard $(ARGS)

bench-docs:  ## generate the tables of benchmarks.md, comparison.md and README.md from benchmarks/results
	$(PY) -m benchmarks.docs

release:  ## build images, chart, wheel, kubectl plugin, checksums, SBOMs and provenance into build/release
	$(PY) -m tests.cluster binaries
	scripts/release -m release

scan:  ## list known vulnerabilities of the locked dependencies, except those in release/allowed.toml; needs PyPI
	scripts/release -m release.scan

images:  ## build the images of the operator and the sidecar, and load them into the local cluster
	$(PY) -m tests.cluster images

crds:  ## generate crds/ from crds/generator/v1alpha1
	$(PY) crds/generator/generate.py

chart:  ## generate the chart's values.schema.json and docs/reference/values.md from values.yaml
	$(PY) scripts/chart_values.py

docs:  ## generate docs/reference, the tables of protocol.md, and the picture of a recovery
	$(PY) scripts/protocol_docs.py
	$(PY) scripts/metrics_docs.py
	$(PY) scripts/reference_docs.py
	$(PY) scripts/recovery_picture.py

site:  ## build the documentation site into build/site; fail if a page is not in the navigation or a link is dead
	scripts/site build --strict --quiet --site-dir build/site

site-serve:  ## serve the documentation site on http://127.0.0.1:8000, and rebuild it when a page changes
	scripts/site serve --strict

lock:  ## update the lock files: requirements/*.in -> *.lock
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

format:  ## format the code, and fix what ruff can fix
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:  ## remove build outputs from the tree; the cache stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
