package globalrouter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cmd/internal/admin"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/globalrouter"
	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/trust"
)

// inWorld serves the plan that the controllers sign, or the last one on disk while none of them can be reached.
func inWorld(ctx context.Context, file string, log *slog.Logger) error {
	hup := hangups()
	defer signal.Stop(hup)
	boot, err := bootstrap.Load[bootstrap.Router](file)
	if err != nil {
		return err
	}
	signer, err := trust.LoadSigner(boot.Identity.Cert, boot.Identity.Key)
	if err != nil {
		return err
	}
	roots, err := trust.LoadRoots(boot.Identity.CA)
	if err != nil {
		return err
	}
	zone, err := readZone(boot.Zone)
	if err != nil {
		return err
	}

	server := &globalrouter.Server{Listen: boot.Listen, Log: log}
	agent := &globalrouter.Agent{
		Dir: filepath.Join(boot.DataDir, "plans"), Zone: zone, Server: server, Log: log,
		Verify: func(envelope []byte, now time.Time) ([]byte, error) {
			if now.IsZero() {
				now = trust.Until(envelope)
			}
			payload, _, err := roots.Verify(trust.KindPlan, envelope, now, trust.RoleController)
			return payload, err
		},
	}
	outlook := newOutlook(boot, roots, log)
	agent.Withdraw, agent.Served = outlook.Withdraw, outlook.Served
	outlook.Load()
	prober, err := newProber(boot, outlook, log)
	if err != nil {
		return err
	}
	in := inbox{agent: agent, outlook: outlook, prober: prober, roots: roots, log: log}
	name := fmt.Sprintf("%016x", rand.Uint64())
	client := nodeapi.NewClient(nodeapi.Options{
		Controllers: boot.Controllers, TLS: trust.ClientTLS(signer, roots, trust.RoleController), Log: log,
		Hello: func() *nodeapi.Hello {
			h := &nodeapi.Hello{Boot: name}
			if p := agent.Held().Plan; p != nil {
				h.PlanEpoch, h.PlanNumber = p.Epoch, p.Number
			}
			return h
		},
		Receive: func(d *nodeapi.Down) { in.receive(d, "push") },
		Polled:  func(d *nodeapi.Down) { in.receive(d, "poll") },
	})
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(globalrouter.Collector{Server: server, Outlook: outlook, Now: time.Now}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	adm, err := admin.Listen(admin.Options{
		Addr: boot.Admin, CertFile: boot.AdminCert, KeyFile: boot.AdminKey, TokenHash: boot.AdminTokenHash,
		Signer: signer, Roots: roots, Gatherer: metrics, Log: log,
		Ready: func() error {
			if agent.Held().Plan == nil {
				return errors.New("no plan yet")
			}
			return nil
		},
		Pages: map[string]http.Handler{"GET /plan": planPage(agent, outlook)},
	})
	if err != nil {
		return err
	}
	if err := server.Bind(); err != nil {
		return err // a second process with the same name ends here, before it touches the disk
	}
	if err := agent.Load(); err != nil {
		return err
	}
	log.Info("globalrouter serves", "id", boot.ID, "zone", zone.Origin(), "listen", boot.Listen, "admin", boot.Admin)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Run(ctx) })
	g.Go(func() error {
		onHangup(ctx, hup, func() { rezone(agent, boot.Zone, log) })
		return nil
	})
	g.Go(func() error { return client.Run(ctx) })
	g.Go(func() error { return outlook.Run(ctx, agent) })
	if prober != nil {
		g.Go(func() error { return prober.Run(ctx) })
	}
	g.Go(func() error { return adm.Run(ctx) })
	g.Go(func() error {
		return certfile.Follow(ctx, log, map[string]certfile.File{"identity": signer, "roots": roots, "admin": adm})
	})
	return g.Wait()
}

func readZone(file string) (*globalrouter.Zone, error) {
	text, err := cli.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("zone: %w", err)
	}
	return globalrouter.ReadZone(file, text)
}

func rezone(agent *globalrouter.Agent, file string, log *slog.Logger) {
	zone, err := readZone(file)
	if err == nil {
		err = agent.Rezone(zone)
	}
	if err != nil {
		log.Error("the zone file was refused; the old one stays", "error", err)
		return
	}
	log.Info("the zone file was read again", "zone", file)
}

// planPage shows the plan, where it came from and how old it is, and what this router's own view takes out of it.
func planPage(agent *globalrouter.Agent, outlook *globalrouter.Outlook) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		held := agent.Held()
		if held.Plan == nil {
			http.Error(w, "no plan yet", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(map[string]any{"source": held.Source, "age_s": time.Since(held.Plan.Created).Seconds(), "view": outlook.Page(), "plan": held.Plan}) // the client went away
	})
}
