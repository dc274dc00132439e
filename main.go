// Command tollgate is an LLM gateway with an event-sourced quota ledger.
package main

func main() {}
