package planner

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/capacity"
	"github.com/cellgate/cellgate/cells"
)

// View is the document of GET /headroom. Headrooms are the free part of the target, 0 to 1; null = not known.
type View struct {
	ReadAt time.Time `json:"read_at,omitzero"`
	AgeS   float64   `json:"age_s"` // -1 = never read
	// Warning says why the figures may be old; empty when they are current.
	Warning string     `json:"warning,omitempty"`
	Globe   Row        `json:"globe"`
	Regions []Row      `json:"regions"`
	Cells   []Row      `json:"cells"`
	Losses  []LossView `json:"losses"`
}

// Row is one cell, region, or the globe.
type Row struct {
	ID       string   `json:"id"`
	LimitRPS float64  `json:"limit_rps"`
	RPS      float64  `json:"rps"`
	Headroom *float64 `json:"headroom"`
}

// LossView is what the loss of one cell or region comes to.
type LossView struct {
	Lost         string   `json:"lost"`
	Fits         bool     `json:"fits"`
	DisplacedRPS float64  `json:"displaced_rps"`
	UnplacedRPS  float64  `json:"unplaced_rps"`
	Headroom     *float64 `json:"headroom_after"`
	// Uncertain counts lost cells whose load is old or doubtful.
	Uncertain int `json:"uncertain,omitempty"`
}

// View computes what is known at now.
func (p *Planner) View(now time.Time) View {
	p.mu.Lock()
	found, read, err := p.cells, p.read, p.err
	p.mu.Unlock()
	v := View{ReadAt: read, AgeS: -1, Regions: []Row{}, Cells: []Row{}, Losses: []LossView{}}
	if err != nil {
		v.Warning = err.Error()
	}
	age := time.Duration(-1)
	if !read.IsZero() {
		age = max(now.Sub(read), 0)
		v.AgeS = age.Seconds()
	}
	v.fill(found, age, p.opt.Config)
	return v
}

func (v *View) fill(found []Cell, age time.Duration, cfg capacity.Config) {
	var all []capacity.Load
	byRegion := map[cells.RegionID][]capacity.Load{}
	var regions []cells.RegionID
	for _, c := range found {
		l := c.load(age)
		all = append(all, l)
		r := c.ID.Region()
		if byRegion[r] == nil {
			regions = append(regions, r)
		}
		byRegion[r] = append(byRegion[r], l)
		v.Cells = append(v.Cells, Row{ID: string(c.ID), LimitRPS: rps(l.Limit), RPS: rps(l.Load), Headroom: known(capacity.Headroom(l, cfg))})
	}
	for _, r := range regions {
		v.Regions = append(v.Regions, sum(string(r), byRegion[r], cfg))
	}
	v.Globe = sum("globe", all, cfg)
	for _, c := range capacity.Survey(all, cfg) {
		lost := string(c.Cell)
		if lost == "" {
			lost = string(c.Region)
		}
		o := c.Outcome
		v.Losses = append(v.Losses, LossView{Lost: lost, Fits: o.Fits(), DisplacedRPS: rps(o.Displaced), UnplacedRPS: rps(o.Unplaced),
			Headroom: known(o.After.Headroom()), Uncertain: o.Uncertain})
	}
}

func sum(id string, loads []capacity.Load, cfg capacity.Config) Row {
	t := capacity.Sum(loads, cfg)
	return Row{ID: id, LimitRPS: rps(t.Limit), RPS: rps(t.Load), Headroom: known(t.Headroom())}
}

func rps(m cells.MilliRPS) float64 { return float64(m) / 1000 }

// Pages are the planner's pages for an admin server: /headroom as JSON, or CSV with ?format=csv or Accept: text/csv;
// /history as JSON lines.
func (p *Planner) Pages() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /headroom": http.HandlerFunc(p.serveHeadroom),
		"GET /history": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-ndjson")
			if _, err := p.opt.History.WriteTo(w); err != nil {
				p.opt.Log.Warn("the history could not be shown", "error", err)
			}
		}),
	}
}

func (p *Planner) serveHeadroom(w http.ResponseWriter, r *http.Request) {
	v := p.View(time.Now())
	format := r.URL.Query().Get("format")
	if format == "" && strings.HasPrefix(r.Header.Get("Accept"), "text/csv") {
		format = "csv"
	}
	switch format {
	case "csv":
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		_ = v.CSV(w) // the client went away
	case "", "json":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the client went away
	default:
		http.Error(w, fmt.Sprintf("format %q is not json or csv", format), http.StatusBadRequest)
	}
}

// CSV writes one line per globe, region and cell, with what its loss would come to. Unknown figures are empty.
func (v View) CSV(w io.Writer) error {
	losses := map[string]LossView{}
	for _, l := range v.Losses {
		losses[l.Lost] = l
	}
	out := csv.NewWriter(w)
	lines := [][]string{{"scope", "id", "limit_rps", "rps", "headroom", "loss_fits", "loss_unplaced_rps"}}
	add := func(scope string, r Row) {
		line := []string{scope, r.ID, number(&r.LimitRPS), number(&r.RPS), number(r.Headroom), "", ""}
		if l, ok := losses[r.ID]; ok && scope != "globe" {
			line[5], line[6] = strconv.FormatBool(l.Fits), number(&l.UnplacedRPS)
		}
		lines = append(lines, line)
	}
	add("globe", v.Globe)
	for _, r := range v.Regions {
		add("region", r)
	}
	for _, c := range v.Cells {
		add("cell", c)
	}
	if err := out.WriteAll(lines); err != nil {
		return fmt.Errorf("planner: csv: %w", err)
	}
	return nil
}

func number(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', -1, 64)
}
