package sim

import (
	"fmt"
	"math/big"
)

// priceList is what the simulator charges: dollars per million tokens, as published by the provider and collected in
// github.com/pydantic/genai-prices (prices/new_data/v2, MIT), state of 2026-08-21. An empty cached price means that cached input
// costs as much as other input; an empty output price, that the model makes none.
var priceList = []struct {
	alias, name           string // what callers ask for, what answers and books say
	created               int64
	does                  endpoint
	input, cached, output string
}{
	{"gpt-4o", "gpt-4o-2024-08-06", 1722814719, endpointChat, "2.5", "1.25", "10"},
	{"gpt-4o-mini", "gpt-4o-mini-2024-07-18", 1721172717, endpointChat, "0.15", "0.075", "0.6"},
	{"gpt-4.1", "gpt-4.1-2025-04-14", 1744315746, endpointChat, "2", "0.5", "8"},
	{"gpt-4.1-mini", "gpt-4.1-mini-2025-04-14", 1744317547, endpointChat, "0.4", "0.1", "1.6"},
	{"gpt-4.1-nano", "gpt-4.1-nano-2025-04-14", 1744321025, endpointChat, "0.1", "0.025", "0.4"},
	{"gpt-5", "gpt-5-2025-08-07", 1754075360, endpointChat, "1.25", "0.125", "10"},
	{"gpt-5-mini", "gpt-5-mini-2025-08-07", 1754425867, endpointChat, "0.25", "0.025", "2"},
	{"gpt-5-nano", "gpt-5-nano-2025-08-07", 1754426303, endpointChat, "0.05", "0.005", "0.4"},
	{"o1", "o1-2024-12-17", 1734326976, endpointChat, "15", "7.5", "60"},
	{"o3", "o3-2025-04-16", 1744133301, endpointChat, "2", "0.5", "8"},
	{"o3-mini", "o3-mini-2025-01-31", 1738010200, endpointChat, "1.1", "0.55", "4.4"},
	{"o4-mini", "o4-mini-2025-04-16", 1744133506, endpointChat, "1.1", "0.275", "4.4"},
	{"gpt-3.5-turbo", "gpt-3.5-turbo-0125", 1706048358, endpointChat, "0.5", "", "1.5"},
	{"gpt-3.5-turbo-instruct", "gpt-3.5-turbo-instruct-0914", 1694122472, endpointCompletions, "1.5", "", "2"},
	{"text-embedding-3-small", "text-embedding-3-small", 1705948997, endpointEmbeddings, "0.02", "", ""},
	{"text-embedding-3-large", "text-embedding-3-large", 1705953180, endpointEmbeddings, "0.13", "", ""},
	{"text-embedding-ada-002", "text-embedding-ada-002", 1671217299, endpointEmbeddings, "0.1", "", ""},
	{"gpt-image-1", "gpt-image-1", 1745517030, endpointImages, "5", "1.25", "40"},
	{"gemini-2.5-flash", "gemini-2.5-flash", 1750118400, endpointGenerate, "0.3", "0.03", "2.5"},
	{"gemini-2.5-flash-lite", "gemini-2.5-flash-lite", 1753142400, endpointGenerate, "0.1", "0.01", "0.4"},
	{"gemini-2.0-flash", "gemini-2.0-flash", 1738713600, endpointGenerate, "0.1", "0.025", "0.4"},
	{"gemini-embedding-001", "gemini-embedding-001", 1752451200, endpointEmbed, "0.15", "", ""},
}

// claudeList is what messages cost, from the same collection. Writing to a cache has a price of its own, by how long the cache
// lives.
var claudeList = []struct {
	alias, name                             string
	created                                 int64
	input, cached, write5m, write1h, output string
}{
	{"claude-haiku-4-5", "claude-haiku-4-5-20251001", 1759276800, "1", "0.1", "1.25", "2", "5"},
	{"claude-sonnet-4-6", "claude-sonnet-4-6", 1771286400, "3", "0.3", "3.75", "6", "15"},
	{"claude-opus-4-5", "claude-opus-4-5-20251101", 1763942400, "5", "0.5", "6.25", "10", "25"},
	{"claude-opus-4-1", "claude-opus-4-1-20250805", 1754352000, "15", "1.5", "18.75", "30", "75"},
}

// model is one entry of the price lists, its prices in nano-dollars a token.
type model struct {
	alias, name           string
	created               int64
	does                  endpoint
	input, cached, output int64
	write5m, write1h      int64
}

var (
	models     = readPriceList()
	modelIndex = indexModels(models)
)

func readPriceList() []model {
	list := make([]model, len(priceList))
	for i, p := range priceList {
		m := model{alias: p.alias, name: p.name, created: p.created, does: p.does, input: nanoPerToken(p.input)}
		m.cached, m.write5m, m.write1h = m.input, m.input, m.input
		if p.cached != "" {
			m.cached = nanoPerToken(p.cached)
		}
		if p.output != "" {
			m.output = nanoPerToken(p.output)
		}
		list[i] = m
	}
	for _, p := range claudeList {
		list = append(list, model{
			alias: p.alias, name: p.name, created: p.created, does: endpointMessages, input: nanoPerToken(p.input),
			cached: nanoPerToken(p.cached), write5m: nanoPerToken(p.write5m), write1h: nanoPerToken(p.write1h), output: nanoPerToken(p.output),
		})
	}
	return list
}

// nanoPerToken turns dollars per million tokens into nano-dollars a token. The list above only holds prices for which that
// is a whole number: then a cost is exact and no rule of rounding is needed. Any other price in the list is a bug.
func nanoPerToken(dollarsPerMillion string) int64 {
	price, ok := new(big.Rat).SetString(dollarsPerMillion)
	if !ok {
		panic(fmt.Sprintf("sim: price %q is no decimal number", dollarsPerMillion))
	}
	price.Mul(price, big.NewRat(1_000, 1))
	if !price.IsInt() || !price.Num().IsInt64() {
		panic(fmt.Sprintf("sim: price %q is no whole number of nano-dollars a token", dollarsPerMillion))
	}
	return price.Num().Int64()
}

func indexModels(list []model) map[string]uint8 {
	index := make(map[string]uint8, 2*len(list))
	for i, m := range list {
		index[m.alias], index[m.name] = uint8(i), uint8(i)
	}
	return index
}

// usage is what one request took. Cached and what was written to caches are part of input, and reasoning is part of output,
// whichever way the protocol tells it.
type usage struct {
	input, cached, write5m, write1h int64
	output, reasoning               int64
}

// plain is the input that no cache had to do with.
func (u usage) plain() int64 { return u.input - u.cached - u.write5m - u.write1h }

// cost is exact: prices are whole nano-dollars a token, and maxTokens keeps the product far from the end of an int64.
func (m *model) cost(u usage) int64 {
	return u.plain()*m.input + u.cached*m.cached + u.write5m*m.write5m + u.write1h*m.write1h + u.output*m.output
}
