package gateway

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"tollgate/gateway/provider"
	"tollgate/ledger"
)

// Handler is the data plane: every route in one place. What is not listed is refused, because it could not be metered.
func (g *Gateway) Handler() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.HandleMethodNotAllowed = true
	router.RedirectTrailingSlash = false
	router.Use(g.recoverPanic)
	for _, endpoint := range provider.Endpoints() {
		if !endpoint.ModelInPath() {
			router.POST(endpoint.Path, func(c *gin.Context) { g.serveEndpoint(c.Writer, c.Request, endpoint, deploymentOf(c.Request)) })
		}
	}
	stored := func(c *gin.Context) { g.serveStored(c.Writer, c.Request, c.Param("id")) }
	router.GET("/v1/responses/:id", stored)
	router.DELETE("/v1/responses/:id", stored)
	router.GET("/v1/responses/:id/input_items", stored)
	router.POST("/v1/responses/:id/cancel", stored)
	router.POST(provider.GeminiModels+":call", func(c *gin.Context) { g.serveGemini(c.Writer, c.Request, c.Param("call")) })
	for _, models := range []string{"/v1/models", "/v1beta/models"} {
		router.GET(models, func(c *gin.Context) { g.listModels(c.Writer, c.Request) })
		router.GET(models+"/:model", func(c *gin.Context) { g.showModel(c.Writer, c.Request, c.Param("model")) })
	}
	router.NoRoute(func(c *gin.Context) { g.refuseRoute(c.Writer, c.Request) })
	router.NoMethod(func(c *gin.Context) { g.refuseRoute(c.Writer, c.Request) })
	return fromAzure(router)
}

func (g *Gateway) serveEndpoint(w http.ResponseWriter, r *http.Request, endpoint provider.Endpoint, model string) {
	if endpoint.Free() {
		g.serveFree(w, r, endpoint, model)
	} else {
		g.serve(w, r, endpoint, model)
	}
}

// serveGemini serves a call "<model>:<method>".
func (g *Gateway) serveGemini(w http.ResponseWriter, r *http.Request, call string) {
	endpoint, model, ok := provider.GeminiMethod(call)
	if !ok {
		g.refuseRoute(w, r)
		return
	}
	g.serveEndpoint(w, r, endpoint, model)
}

// recoverPanic answers a bug with 500. The deliberate abort of a connection goes on to net/http: swallowing it would make an
// answer that broke off look complete.
func (g *Gateway) recoverPanic(c *gin.Context) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
			panic(p)
		}
		g.log.Error("panic while serving", "path", c.Request.URL.Path, "panic", p)
		if c.Writer.Written() {
			panic(http.ErrAbortHandler)
		}
		g.problem(c.Writer, c.Request, &problem{reason: ledger.ReasonInternal, message: "the gateway failed on this request"})
	}()
	c.Next()
}
