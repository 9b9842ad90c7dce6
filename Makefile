# `make help` lists the targets. The work itself is done by cargo and by xtask/.

CARGO ?= cargo
XTASK := $(CARGO) xtask

# Where tests that cannot run on this machine say so.
SKIPPED := $(or $(CARGO_TARGET_DIR),target)/tmp/skipped

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: control-plane ## Everything that must hold: format, lints, generated files, all tests on a real API server
	@echo '== format'
	$(CARGO) fmt --all --check
	@echo '== lints'
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@echo '== generated files'
	$(XTASK) codegen --check
	@echo '== tests'
	@rm -f $(SKIPPED)
	$(XTASK) test
	@if [ -s $(SKIPPED) ]; then echo "== skipped on this machine: $$(wc -l < $(SKIPPED))"; cat $(SKIPPED); \
	  else echo '== no test was skipped'; fi

.PHONY: proof
proof: export FIVESPOT_PROOF := 1
proof: export PROPTEST_CASES := 100000
proof: test ## The same with the long forms at full length

.PHONY: lint
lint: ## Checks with tools that are not on every machine: licences, sources and bans of dependencies
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny --offline check bans licenses sources

.PHONY: advisories
advisories: ## Compare the dependencies with the RustSec advisory database; needs the network
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny check advisories

# Seconds for each fuzz target, and the toolchain that can build them.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := days hours cron duration manifest agent_config text

.PHONY: fuzz
fuzz: ## Run each fuzz target for a minute (FUZZ_SECONDS); needs a nightly toolchain, installs cargo-fuzz
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	@for target in $(FUZZ_TARGETS); do echo "== fuzz $$target"; \
	  $(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 || exit 1; done

.PHONY: mutants
mutants: control-plane ## Make each deliberate wrong change of mutants/ and see that its test catches it
	$(XTASK) mutants

.PHONY: campaign
campaign: control-plane ## Let everything around us fail in turn, and write docs/campaign.md (hours; PART=NAME for the tests so named)
	FIVESPOT_CAMPAIGN=1 $(CARGO) test --locked --package fivespot-fleet --test campaign -- --nocapture $(PART)
	FIVESPOT_CAMPAIGN=1 $(CARGO) test --locked --package fivespot-controller --test campaign -- --nocapture $(PART)

.PHONY: bench
bench: control-plane ## Measure speed and size, in nanoseconds and in instructions
	$(CARGO) build --locked --release --package fivespot-bench
	$(XTASK) bench
	$(CARGO) build --locked --release --package fivespot-agent --bins --examples
	target/release/examples/figures

.PHONY: build
build: ## Build the release binaries into target/release
	$(CARGO) build --locked --release --workspace --exclude xtask --exclude fivespot-testenv --exclude fivespot-bench --exclude fivespot-sim

.PHONY: control-plane
control-plane: ## Build etcd, the Kubernetes servers and Cluster API from source, once for this machine
	@echo '== control plane'
	$(XTASK) control-plane

.PHONY: cluster
cluster: ## Run a real control plane until Ctrl-C; TWO=1 for a workload cluster beside it, PORT=n for a fixed port
	@$(XTASK) cluster $(if $(TWO),--two) $(if $(PORT),--port $(PORT))

.PHONY: demo
demo: ## Watch a machine leave by the clock, and at once for its owner, on a real control plane, until Ctrl-C
	@$(XTASK) demo $(if $(TWO),--two) $(if $(PORT),--port $(PORT))

.PHONY: codegen
codegen: ## Write the files that are generated from code
	$(XTASK) codegen
