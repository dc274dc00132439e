// Package sim is a model provider for development and tests: it answers as the APIs of OpenAI, Anthropic and Gemini do, bills what
// it answers in books of its own, and serves those books as OpenAI's usage and costs reports.
//
// Its token counts, prices and sums are worked out here alone, so that a ledger which agrees with the books agrees for a
// reason. No package of the gateway, the settler or the ledger is imported, and none may be.
//
// # Answers
//
//	POST /v1/chat/completions   plain and streamed, n choices, stream_options.include_usage, the call of a function
//	POST /v1/completions        plain and streamed, n choices for each prompt
//	POST /v1/embeddings         a text, texts, a list of token ids, lists of token ids; float and base64
//	POST /v1/responses          plain and streamed, previous_response_id, the call of a function
//	GET, DELETE /v1/responses/{id} and POST /v1/responses/input_tokens, free
//	POST /v1/images/generations
//	GET  /v1/models[/{id}]
//	POST /v1/messages           plain and streamed, thinking, caches, the call of a tool; asks for an anthropic-version
//	POST /v1/messages/count_tokens, free
//	POST /v1beta/models/{model}:generateContent, :streamGenerateContent (events, or a list), the call of a function
//	POST /v1beta/models/{model}:embedContent, :batchEmbedContents, without usage
//	POST /v1beta/models/{model}:countTokens, free
//
//	GET  /v1/organization/usage/completions, /v1/organization/usage/embeddings, /v1/organization/costs
//	                            start_time, end_time, bucket_width, limit, page, group_by and the provider's filters;
//	                            buckets begin at multiples of their width in UTC
//	GET  /sim/books?since=      all records; since is a record's number, or the RFC 3339 time of its end
//	GET  /sim/totals            their sums
//	POST /sim/control           settings for all requests, as a JSON object that replaces the one before
//	POST /sim/reset             empties the books
//
// Apart from that, [Replay] answers recorded exchanges with any provider as they were recorded.
//
// A model may be asked for by its alias (gpt-4o) or by its dated name (gpt-4o-2024-08-06). Answers and books carry the
// dated name, as the real ones do. Where a top-level JSON key stands twice, the last one counts.
//
// # Settings
//
// A test says how a request is answered by headers, by a directive in the last user message (the last prompt or input of
// the other endpoints), or for all requests through POST /sim/control and Server.SetDefaults. All take the same settings:
//
//	prompt_tokens=60       input tokens used, instead of counting, caches included
//	completion_tokens=40   output tokens used by all choices together, reasoning included
//	cached_tokens=10       part of the input that came from the cache
//	cache_write_5m=8       part of the input that went into a cache of five minutes (messages)
//	cache_write_1h=8       the same of an hour
//	reasoning_tokens=5     part of the output that is not shown; in messages it is thinking, which is: a quarter of the output
//	                       where the body asks for thinking and nothing else is set
//	latency=50ms           wait before the first byte, and before an error
//	chunk_delay=2ms        wait before each chunk of a stream but the first
//	chunks=20              chunks with text in a stream, for each choice
//	status=429             answer with this error
//	error=some_code        the error's code, in messages its type; alone it means status 500
//	error_after=3          end a stream with an error event after so many chunks with text
//	finish=refusal         why the answer ended
//	use_tool               call the first function that the request brings, unless it brings its result; a tool_choice that asks
//	                       for a call does so, too
//	retry_after=3          seconds in the error's Retry-After header
//	cut_after=7            close the connection after so many chunks with text; 0 closes it before the first byte;
//	                       a plain answer is cut in the middle of its body
//	no_usage               say nothing about usage, whoever asks (it is billed all the same)
//	zero_usage             say that nothing was used, and bill nothing
//	no_done                end a stream without its [DONE] or message_stop
//
// As a header: "X-Sim-Prompt-Tokens: 60". As a directive: "[[sim prompt_tokens=60 no_done]]". A flag without a value is
// set; "no_done=false" unsets it. A header counts over a directive, a directive over the defaults. A setting that cannot be
// understood is answered with 400, never ignored.
//
// # Counting
//
// A list of token ids counts exactly. In text, a run of ASCII letters and digits is one token for every six characters
// begun, every other character that is not a space is one token. A chat message is 3 tokens, its role, its text, 85 for each
// image, and the JSON text of any other field; tools and response_format count as their JSON text, system as its text; the
// answer's opening is 3 more. Items of a response and Gemini's contents count as messages do; a response goes on from another by
// reading all that was said in it again. An image that is drawn is 272 tokens. Output is what the request allows, at most Config.OutputTokens a choice. Each word of an answer is one token by the
// same rule; an answer longer than 4,096 words repeats its usage but not its text.
//
// # Billing
//
// A request that is answered is recorded once, before the last byte is sent: who has the whole answer finds it in the
// books. What has no answer but an error is not billed. The rest of the rules:
//
//   - A stream that its reader left, that cut_after cut or that error_after ended is billed the input and what was generated
//     until then: nothing before the first chunk, then all reasoning and the text of each chunk that was written. A chunk
//     counts when the operating system took it, whether or not the reader ever saw it.
//   - A plain answer is generated as a whole before it is sent, so it is billed as a whole, also when the caller left while
//     waiting, or when it is cut.
//   - Reports put a request in the bucket of its end.
//
// # Not guaranteed
//
// Nothing is kept on disk. Rate limits are shown in headers and never enforced. best_of, batch and audio have no effect
// on the answer. The books hold all; the reports are OpenAI's, of what it was asked.
package sim
