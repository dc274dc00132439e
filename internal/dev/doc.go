// Package dev runs the whole system in one process group with nothing to set up: Postgres, Redis, NATS, settler, gateway,
// admin plane and, where no provider key is at hand, the provider simulator.
//
// Everything listens on loopback TCP, so that other gateways, psql, redis-cli and nats can join. What a run needs to be
// found again is in the data folder: the stores, the demo key, and dev.env with every address as shell assignments.
package dev
