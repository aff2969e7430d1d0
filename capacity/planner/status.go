package planner

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cellgate/cellgate/capacity"
	"github.com/cellgate/cellgate/cells"
)

// maxStatus bounds a status document: 200 cells with 50 nodes each are about 3 MB.
const maxStatus = 16 << 20

// Cell is what a status document says of one cell. Other fields of the document are not read.
type Cell struct {
	ID       cells.CellID `json:"id"`
	State    cells.State  `json:"state"`
	Healthy  *bool        `json:"healthy"`
	RPS      *float64     `json:"rps"`
	LimitRPS float64      `json:"limit_rps"`
}

// load is the cell as the arithmetic knows it, when it was read age ago.
func (c Cell) load(age time.Duration) capacity.Load {
	l := capacity.Load{Cell: c.ID, Limit: milli(c.LimitRPS), Age: -1}
	if c.RPS != nil {
		l.Load, l.Age = milli(*c.RPS), age
	}
	down := c.Healthy != nil && !*c.Healthy
	l.Out = down || c.State == cells.Evacuating || c.State == cells.Evacuated
	return l
}

// milli converts requests per second. What is out of range becomes a figure that capacity does not trust.
func milli(rps float64) cells.MilliRPS {
	switch v := rps * 1000; {
	case v > float64(capacity.MaxRate):
		return capacity.MaxRate + 1
	case v < 0:
		return -1
	default:
		return cells.MilliRPS(v)
	}
}

// API reads the status of the world from the regionctls' HTTP API.
type API struct {
	urls      []string
	tokenFile string
	client    *http.Client
}

// NewAPI gives a reader that asks the base URLs in turn, trusts the PEM roots of caFile and shows the bearer token that
// tokenFile holds at the time.
func NewAPI(urls []string, caFile, tokenFile string) (*API, error) {
	if len(urls) == 0 {
		return nil, errors.New("planner: no API address is given")
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("planner: api_ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("planner: api_ca: %s holds no PEM certificate", caFile)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	return &API{urls: urls, tokenFile: tokenFile, client: &http.Client{
		Timeout: 5 * time.Second, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the API redirects, which the token must not follow")
		},
	}}, nil
}

// Read gives the cells as the first API that answers knows them.
func (a *API) Read(ctx context.Context) ([]Cell, error) {
	token, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return nil, fmt.Errorf("planner: api_token: %w", err)
	}
	var errs []error
	for _, base := range a.urls {
		found, err := a.get(ctx, strings.TrimSuffix(base, "/")+"/v1/status", strings.TrimSpace(string(token)))
		if err == nil {
			return found, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (a *API) get(ctx context.Context, url, token string) ([]Cell, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("planner: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("planner: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("planner: GET %s: %s", url, res.Status)
	}
	var doc struct {
		Cells []Cell `json:"cells"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxStatus)).Decode(&doc); err != nil {
		return nil, fmt.Errorf("planner: GET %s: %w", url, err)
	}
	if len(doc.Cells) == 0 {
		return nil, fmt.Errorf("planner: GET %s: the status names no cell", url)
	}
	return doc.Cells, nil
}

// Close gives idle connections back.
func (a *API) Close() { a.client.CloseIdleConnections() }
