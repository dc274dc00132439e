# `make dev` runs everything on this computer, `make test` checks everything. The steps of the latter live in .ci/check.
.DEFAULT_GOAL := help
.PHONY: help dev test deps lint unit system fuzz bench chaos build secrets

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

dev: ## run the whole system until Ctrl-C
	go run . dev

test: ## install what the tests need where it is missing, then run every check
	@.ci/check

deps: ## install what the tests need where it is missing: redis-server, Postgres, a C compiler, Node
	@.ci/check deps

lint: ## gofumpt, go vet, staticcheck, go mod tidy -diff
	@.ci/check lint

unit: ## every test but those of the next line, with the race detector, in random order; every benchmark once
	@.ci/check unit

system: ## the tests that run the whole system, from the built binary
	@.ci/check system

fuzz: ## every fuzz target for ten seconds
	@.ci/check fuzz

bench: ## every benchmark once
	@.ci/check bench

chaos: ## 200 schedules of faults under load, books compared after each; SEEDS and FIRST choose others
	go test ./e2e/chaos -run TestChaos -timeout 4h -parallel 2 -v -chaos.long -chaos.seeds $(or $(SEEDS),200) -chaos.first $(or $(FIRST),1)

build: ## the static binary, in bin/
	CGO_ENABLED=0 go build -trimpath -o bin/tollgate .

# The folder is private; the files in it are readable, because each container reads them as a user of its own.
secrets: ## make the secrets that docker-compose.yml reads, in .secrets/; existing ones stay
	@umask 077 && mkdir -p .secrets && cd .secrets && \
	for name in postgres_password service_password admin_token grafana_password grafana_db_password; do \
		test -s $$name || head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >$$name; \
	done && \
	url() { printf 'postgres://%s:%s@postgres:5432/tollgate?sslmode=disable' "$$1" "$$(cat $$2)"; } && \
	url tollgate postgres_password >database_owner_url && \
	url tollgate_service service_password >database_url && \
	touch openai_api_key && chmod 644 *
