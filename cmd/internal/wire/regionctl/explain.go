package regionctl

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/regionctl"
	"github.com/cellgate/cellgate/snapshot"
)

// offline is what explain needs to ask documents instead of a world.
type offline struct {
	documents []string
	permitted []string
}

func (o *offline) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&o.documents, "document", nil, "ask the document `FILE` instead of a world; repeatable")
	allowFlag(cmd, &o.permitted)
}

// explain compiles the documents and looks the request up; the version is 0.
func (o *offline) explain(cmd *cobra.Command, req regionctl.ExplainRequest) (regionctl.Explained, error) {
	headers := map[string]string{}
	for name, value := range req.Headers {
		headers[strings.ToLower(name)] = value
	}
	parsed, err := program.ParseRequest(req.Method, req.URL, headers)
	if err != nil {
		return regionctl.Explained{}, fmt.Errorf("%s: %w; the proxy answers 400", req.URL, err)
	}
	cfg, err := sound(cmd, o.documents, o.permitted)
	if err != nil {
		return regionctl.Explained{}, err
	}
	s, err := snapshot.Seal(cfg, snapshot.Meta{})
	if err != nil {
		return regionctl.Explained{}, err
	}
	p, err := program.Compile(s, nil)
	if err != nil {
		return regionctl.Explained{}, err
	}
	return regionctl.Explained{Explanation: p.Explain(parsed, program.Caller{Claims: req.Claims, Consumer: req.Consumer}, time.Now())}, nil
}
