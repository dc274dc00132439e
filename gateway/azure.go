package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strings"
)

// Callers with an SDK for Azure OpenAI address this gateway as they would Azure: with a deployment in the path, which names the
// model here, a date as version of the API, which nothing depends on, and the key in the header api-key.
const (
	azureRoot        = "/openai"
	azureDeployments = azureRoot + "/deployments/"
)

type deploymentKey struct{}

// deploymentOf is the model that the address of an Azure SDK names, "" for every other one.
func deploymentOf(r *http.Request) string {
	name, _ := r.Context().Value(deploymentKey{}).(string)
	return name
}

// fromAzure leads requests in the shape of Azure's addresses to the route of OpenAI's that they mean:
//
//	/openai/deployments/{model}/chat/completions?api-version=…   /v1/chat/completions
//	/openai/responses?api-version=…                              /v1/responses
//	/openai/v1/…                                                 /v1/…
func fromAzure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.EscapedPath()
		if !strings.HasPrefix(path, azureRoot+"/") {
			next.ServeHTTP(w, r)
			return
		}
		deployment := ""
		if rest, ok := strings.CutPrefix(path, azureDeployments); ok {
			name, operation, _ := strings.Cut(rest, "/")
			if unescaped, err := url.PathUnescape(name); err == nil {
				deployment = unescaped
			}
			path = "/v1/" + operation
		} else if path = strings.TrimPrefix(path, azureRoot); !strings.HasPrefix(path, "/v1/") {
			path = "/v1" + path
		}
		to, err := url.Parse(path)
		if err != nil {
			next.ServeHTTP(w, r) // no route is called so
			return
		}
		query := r.URL.Query()
		query.Del("api-version")
		to.RawQuery = query.Encode()
		r = r.WithContext(context.WithValue(r.Context(), deploymentKey{}, deployment))
		r.URL = to
		next.ServeHTTP(w, r)
	})
}
