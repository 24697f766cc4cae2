package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// secured is an application of one user: what it may do changes while it runs.
type secured struct {
	options  []kgo.Opt
	producer *kgo.Client
	consumer *kgo.Client
}

// runSecured does what the lines of standard input say; each is answered by one line: "ok" and what was found,
// or "failed" and the kind of the error. The arguments are an address, a certificate, a mechanism, a user, and
// a password or a token.
func runSecured(arguments []string) {
	address, certificate, mechanism, user, secret :=
		arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]
	pem, err := os.ReadFile(certificate)
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	s := &secured{options: []kgo.Opt{
		kgo.SeedBrokers(address),
		kgo.ClientID(clientID),
		kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}),
		kgo.SASL(login(mechanism, user, secret)),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(50 * time.Millisecond),
	}}
	s.producer = s.client()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		found, err := s.act(strings.Fields(lines.Text()))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			fmt.Println("failed", kind(err))
		} else {
			fmt.Println("ok", found)
		}
	}
}

func login(mechanism, user, secret string) sasl.Mechanism {
	switch mechanism {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: secret}.AsMechanism()
	}
}

// kind is the name of the broker's error, or the text of another one.
func kind(err error) string {
	var code *kerr.Error
	if errors.As(err, &code) {
		return code.Message
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

func (s *secured) client(more ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(append([]kgo.Opt{}, s.options...), more...)...)
	check(err)
	return client
}

func (s *secured) act(words []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	switch words[0] {
	case "write":
		return s.write(words[1], words[2])
	case "read":
		return s.read(ctx, words[1], words[2])
	case "look":
		return "", s.producer.Ping(ctx)
	default:
		return "", fmt.Errorf("there is no %s", words[0])
	}
}

// write does not wait forever, as the client does for a record that may have been written.
func (s *secured) write(topic, value string) (string, error) {
	done := make(chan error, 1)
	record := &kgo.Record{Topic: topic, Value: []byte(value)}
	s.producer.Produce(context.Background(), record, func(_ *kgo.Record, err error) { done <- err })
	select {
	case err := <-done:
		return fmt.Sprint("at ", record.Offset), err
	case <-time.After(5 * time.Second):
		return "", errors.New("not acknowledged")
	}
}

// read gives the next record that the group has not read.
func (s *secured) read(ctx context.Context, topic, group string) (string, error) {
	if s.consumer == nil {
		s.consumer = s.client(kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.DisableAutoCommit())
	}
	for ctx.Err() == nil {
		fetches := s.consumer.PollRecords(ctx, 1)
		if err := fetches.Err(); err != nil {
			return "", err
		}
		for _, record := range fetches.Records() {
			return string(record.Value), s.consumer.CommitRecords(ctx, record)
		}
	}
	return "", errors.New("nothing came")
}
