package globalrouter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/globalrouter"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/problem"
)

// standalone serves from files, and reads them again on SIGHUP.
func (o *options) standalone(ctx context.Context, addrs []netip.AddrPort, log *slog.Logger) error {
	hup := hangups()
	defer signal.Stop(hup)
	table, err := o.compile()
	if err != nil {
		return err
	}
	server := &globalrouter.Server{Listen: addrs, Log: log}
	server.Swap(table)
	if err := server.Bind(); err != nil {
		return err
	}
	log.Info("globalrouter serves", "zone", o.zone, "listen", server.Bound())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Run(ctx) })
	g.Go(func() error {
		onHangup(ctx, hup, func() { o.reload(server, log) })
		return nil
	})
	return g.Wait()
}

// hangups gets every SIGHUP from now on, so that an early one does not end the process.
func hangups() chan os.Signal {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	return hup
}

// onHangup calls again for each SIGHUP until ctx ends.
func onHangup(ctx context.Context, hup <-chan os.Signal, again func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			again()
		}
	}
}

func (o *options) reload(server *globalrouter.Server, log *slog.Logger) {
	table, err := o.compile()
	if err != nil {
		log.Error("the files were refused; the old ones stay", "error", err)
		return
	}
	server.Swap(table)
	log.Info("the files were read again", "zone", o.zone)
}

// compile reads all files into one table, or says all that is wrong with the first bad one.
func (o *options) compile() (*globalrouter.Table, error) {
	zone, err := readZone(o.zone)
	if err != nil {
		return nil, err
	}
	if o.plan == "" {
		return globalrouter.Compile(zone, nil, nil, false)
	}
	plan, err := readPlan(o.plan)
	if err != nil {
		return nil, err
	}
	var problems problem.List
	for _, m := range zone.Misfits(plan) {
		problems = append(problems, problem.Problem{File: o.plan, Line: 1, Path: "names." + m.Name, Message: m.Why})
	}
	if len(problems) > 0 {
		return nil, problems
	}
	geo, err := o.readGeo(plan)
	if err != nil {
		return nil, err
	}
	return globalrouter.Compile(zone, plan, geo, false)
}

func (o *options) readGeo(plan *steer.Plan) ([]globalrouter.GeoEntry, error) {
	if o.geo == "" {
		return nil, nil
	}
	text, err := cli.ReadFile(o.geo)
	if err != nil {
		return nil, fmt.Errorf("--geo: %w", err)
	}
	geo, err := globalrouter.ReadGeo(o.geo, text)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, l := range plan.Localities {
		known[l.ID] = true
	}
	for _, g := range geo {
		if !known[g.Locality] {
			return nil, problem.List{{File: o.geo, Line: g.Line, Message: fmt.Sprintf("the plan has no locality %q", g.Locality)}}
		}
	}
	return geo, nil
}

func readPlan(file string) (*steer.Plan, error) {
	raw, err := cli.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--plan: %w", err)
	}
	var p steer.Plan
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return nil, problem.List{{File: file, Line: lineAt(raw, offset(err, dec)), Message: err.Error()}}
	}
	if dec.More() {
		return nil, problem.List{{File: file, Line: lineAt(raw, dec.InputOffset()), Message: "something follows the plan"}}
	}
	if err := p.Validate(); err != nil {
		return nil, problem.List{{File: file, Line: 1, Message: strings.TrimPrefix(err.Error(), "plan: ")}}
	}
	return &p, nil
}

// offset is where in the file the decoder stopped.
func offset(err error, dec *json.Decoder) int64 {
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return syntax.Offset
	}
	if kind := (*json.UnmarshalTypeError)(nil); errors.As(err, &kind) {
		return kind.Offset
	}
	return dec.InputOffset()
}

func lineAt(raw []byte, offset int64) int {
	return 1 + bytes.Count(raw[:min(offset, int64(len(raw)))], []byte("\n"))
}
