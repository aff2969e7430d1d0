package server

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo makes the logger that etcd wants out of ours: errors stay errors, warnings (slow disks, slow peers) are for debugging.
func zapTo(log *slog.Logger) *zap.Logger { return zap.New(bridge{log}) }

type bridge struct{ log *slog.Logger }

func (b bridge) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (b bridge) With(fields []zapcore.Field) zapcore.Core {
	return bridge{b.log.With(attrs(fields)...)}
}

func (b bridge) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(e.Level) {
		return ce.AddCore(e, b)
	}
	return ce
}

func (b bridge) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelDebug
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	b.log.Log(context.Background(), level, e.Message, attrs(fields)...)
	return nil
}

func (b bridge) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	var out []any
	for _, f := range fields {
		f.AddTo(enc)
	}
	for key, value := range enc.Fields {
		out = append(out, key, value)
	}
	return out
}
