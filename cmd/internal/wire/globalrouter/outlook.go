package globalrouter

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/globalrouter"
	"github.com/cellgate/cellgate/globalrouter/view"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/health/probe"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/trust"
)

// newOutlook is the router's own view of the world.
func newOutlook(boot bootstrap.Router, roots *trust.Roots, log *slog.Logger) *globalrouter.Outlook {
	return &globalrouter.Outlook{
		Config: view.Config{
			Region: boot.ID.Region(), DownAfter: boot.Timing.DownAfter, UpAfter: boot.Timing.UpAfter,
			FlapCap: boot.Timing.FlapCap, Ramp: boot.Timing.Ramp,
		}.WithDefaults(),
		File: filepath.Join(boot.DataDir, "overrides.json"), Now: time.Now, Log: log,
		Verify: func(envelope []byte, now time.Time) ([]byte, cells.RegionID, error) {
			payload, by, err := roots.Verify(trust.KindOverrides, envelope, now, trust.RoleController)
			return payload, by.ID.Region(), err
		},
	}
}

// newProber looks at the cells' front doors for the outlook; nil when the bootstrap file has no CA to verify them by.
func newProber(boot bootstrap.Router, outlook *globalrouter.Outlook, log *slog.Logger) (*probe.Prober, error) {
	if boot.EdgeCA == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(boot.EdgeCA)
	if err != nil {
		return nil, fmt.Errorf("edge_ca: %w", err)
	}
	edge := x509.NewCertPool()
	if !edge.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("edge_ca: %s holds no PEM certificate", boot.EdgeCA)
	}
	return probe.New(probe.Options{
		From: boot.ID.Region(), Topology: boot.Topology, DoorsOnly: true, Host: boot.ProbeHost, Path: boot.ProbePath,
		Roots: edge, Send: outlook.Saw, Log: log,
	}), nil
}

// inbox sorts what controllers send.
type inbox struct {
	agent   *globalrouter.Agent
	outlook *globalrouter.Outlook
	prober  *probe.Prober // nil = none
	roots   *trust.Roots
	log     *slog.Logger
}

// receive takes one message. A controller sends the current ones again on every attach and poll, so an equal plan is no news.
func (in *inbox) receive(d *nodeapi.Down, source string) {
	var what string
	var err error
	switch m := d.GetMessage().(type) {
	case *nodeapi.Down_Plan:
		what, err = "plan", in.agent.Accept(m.Plan.GetEnvelope(), source, time.Now())
	case *nodeapi.Down_Overrides:
		what, err = "list of evacuations", in.outlook.Order(m.Overrides.GetEnvelope(), m.Overrides.GetAdds())
	case *nodeapi.Down_Topology:
		what, err = "topology", in.topology(m.Topology.GetEnvelope())
	case *nodeapi.Down_Verdicts:
		what, err = "list of verdicts", in.verdicts(m.Verdicts.GetEnvelope())
	}
	if err != nil && !errors.Is(err, globalrouter.ErrOlder) {
		in.log.Warn("refused a "+what, "source", source, "error", err)
	}
}

func (in *inbox) topology(envelope []byte) error {
	var t cells.Topology
	if err := in.open(trust.KindTopology, envelope, &t); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	if in.prober != nil {
		in.prober.SetTopology(t)
	}
	return nil
}

func (in *inbox) verdicts(envelope []byte) error {
	var v health.Verdicts
	if err := in.open(trust.KindVerdicts, envelope, &v); err != nil {
		return err
	}
	if v.Form < 1 || v.Form > health.VerdictsForm {
		return fmt.Errorf("verdicts: form %d is not readable here", v.Form)
	}
	in.outlook.Told(v)
	return nil
}

// open verifies a controller's signature and decodes what it has signed.
func (in *inbox) open(kind string, envelope []byte, v any) error {
	payload, _, err := in.roots.Verify(kind, envelope, time.Now(), trust.RoleController)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(payload, v); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}
