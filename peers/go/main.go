// What an application does with transactions, by franz-go.
//
// Each line of standard input names a scenario, a visibility and how many seconds a committed transaction may
// take to show; each is answered by one line: "ok", or "failed" and why. With the argument "secured" it is another
// program, which is in secured.go.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	clientID   = "peer-go"
	partitions = 5
	long       = 30 * time.Second
)

var scenarios = map[string]func(*peer){
	"commit":            (*peer).commit,
	"abort":             (*peer).abort,
	"five-partitions":   (*peer).fivePartitions,
	"back-to-back":      (*peer).backToBack,
	"isolation":         (*peer).isolation,
	"fencing":           (*peer).fencing,
	"timeout":           (*peer).timeout,
	"pipeline-classic":  func(p *peer) { p.pipeline(false) },
	"pipeline-consumer": func(p *peer) { p.pipeline(true) },
}

type peer struct {
	ctx        context.Context
	bootstrap  string
	visibility string
	patience   time.Duration
	run        string
	admin      *kadm.Client
}

func main() {
	if os.Args[1] == "secured" {
		runSecured(os.Args[2:])
		return
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var scenario, visibility string
		var seconds float64
		_, err := fmt.Sscanf(lines.Text(), "%s %s %g", &scenario, &visibility, &seconds)
		if err == nil {
			err = play(os.Args[1], scenario, visibility, time.Duration(seconds*float64(time.Second)))
		}
		if err != nil {
			fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok")
		}
	}
}

// play runs one scenario; inside it, what goes wrong panics.
func play(bootstrap, scenario, visibility string, patience time.Duration) (err error) {
	act, found := scenarios[scenario]
	if !found {
		return fmt.Errorf("there is no scenario %s", scenario)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*long)
	defer cancel()
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("%v", problem)
		}
	}()
	p := &peer{ctx: ctx, bootstrap: bootstrap, visibility: visibility, patience: patience, run: rand.Text()[:8]}
	client := p.client()
	defer client.Close()
	p.admin = kadm.NewClient(client)
	act(p)
	return nil
}

func (p *peer) commit() {
	topic := p.create("commit", 1)
	producer := p.producer("commit", time.Minute)
	defer producer.Close()
	check(producer.BeginTransaction())
	p.send(producer, topic, 0, "a", 10)
	check(producer.EndTransaction(p.ctx, kgo.TryCommit))
	p.shows(topic, numbered("a", 10))
}

func (p *peer) abort() {
	topic := p.create("abort", 1)
	producer := p.producer("abort", time.Minute)
	defer producer.Close()
	check(producer.BeginTransaction())
	p.send(producer, topic, 0, "aborted", 10)
	check(producer.EndTransaction(p.ctx, kgo.TryAbort))
	p.shows(topic, nil)
	check(producer.BeginTransaction())
	check(producer.EndTransaction(p.ctx, kgo.TryAbort))
	check(producer.BeginTransaction())
	p.send(producer, topic, 0, "b", 3)
	check(producer.EndTransaction(p.ctx, kgo.TryCommit))
	p.shows(topic, numbered("b", 3))
}

func (p *peer) fivePartitions() {
	topic := p.create("five", partitions)
	producer := p.producer("five", time.Minute)
	defer producer.Close()
	var expected []string
	for round, outcome := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		check(producer.BeginTransaction())
		for partition := range int32(partitions) {
			prefix := fmt.Sprintf("%d-%d-", round, partition)
			p.send(producer, topic, partition, prefix, 10)
			if outcome == kgo.TryCommit {
				expected = append(expected, numbered(prefix, 10)...)
			}
		}
		check(producer.EndTransaction(p.ctx, outcome))
	}
	p.shows(topic, expected)
}

func (p *peer) backToBack() {
	topic := p.create("many", partitions)
	producer := p.producer("many", time.Minute)
	defer producer.Close()
	var expected []string
	for number := range int32(50) {
		prefix := fmt.Sprintf("t%d-", number)
		check(producer.BeginTransaction())
		p.send(producer, topic, number%partitions, prefix, 2)
		p.send(producer, topic, (number+1)%partitions, prefix+"x", 1)
		if number%3 == 2 {
			check(producer.EndTransaction(p.ctx, kgo.TryAbort))
			continue
		}
		check(producer.EndTransaction(p.ctx, kgo.TryCommit))
		expected = append(expected, append(numbered(prefix, 2), prefix+"x0")...)
	}
	p.shows(topic, expected)
}

func (p *peer) isolation() {
	topic := p.create("isolation", 1)
	producer := p.producer("isolation", time.Minute)
	defer producer.Close()
	plain := p.client()
	defer plain.Close()
	check(producer.BeginTransaction())
	p.send(producer, topic, 0, "open", 5)
	p.send(plain, topic, 0, "plain", 1)
	// A journal keeps an open transaction out of everyone's way; a marker topic holds back what follows it.
	committed, everything := []string{"plain0"}, []string{"plain0"}
	if p.visibility != "journal" {
		committed, everything = nil, append(numbered("open", 5), "plain0")
	}
	same("committed, open", committed, values(p.read(topic, true)))
	same("everything, open", everything, values(p.read(topic, false)))
	check(producer.EndTransaction(p.ctx, kgo.TryAbort))
	p.shows(topic, []string{"plain0"})
	same("everything, aborted", everything, values(p.read(topic, false)))
	check(producer.BeginTransaction())
	p.send(producer, topic, 0, "c", 2)
	p.send(plain, topic, 0, "between", 1)
	check(producer.EndTransaction(p.ctx, kgo.TryCommit))
	p.shows(topic, []string{"plain0", "c0", "c1", "between0"})
	if p.visibility == "journal" {
		all := p.read(topic, false)
		same("the order of commits", []string{"plain0", "between0", "c0", "c1"}, values(all))
		for at, record := range all {
			if record.Offset != int64(at) {
				panic(fmt.Sprintf("a gap: record %d has offset %d", at, record.Offset))
			}
		}
	}
}

func (p *peer) fencing() {
	topic := p.create("fencing", 1)
	zombie, successor := p.producer("fencing", time.Minute), p.producer("fencing", time.Minute)
	defer zombie.Close()
	defer successor.Close()
	check(zombie.BeginTransaction())
	p.send(zombie, topic, 0, "zombie", 3)
	check(successor.BeginTransaction())
	p.send(successor, topic, 0, "new", 2)
	fails("a zombie's commit", zombie.EndTransaction(p.ctx, kgo.TryCommit), "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
	check(successor.EndTransaction(p.ctx, kgo.TryCommit))
	p.shows(topic, numbered("new", 2))
}

func (p *peer) timeout() {
	topic := p.create("timeout", 1)
	late := p.producer("timeout", time.Second)
	defer late.Close()
	check(late.BeginTransaction())
	p.send(late, topic, 0, "late", 3)
	id := p.id("timeout")
	until("the abort of "+id, func() bool {
		described, err := p.admin.DescribeTransactions(p.ctx, id)
		check(err)
		return described[id].State == "CompleteAbort"
	})
	// The second form of the protocol knows the abort as the end of this transaction: a commit came too late.
	fails("a late commit", late.EndTransaction(p.ctx, kgo.TryCommit),
		"INVALID_TXN_STATE", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
	p.shows(topic, nil)
	next := p.producer("timeout", time.Minute)
	defer next.Close()
	check(next.BeginTransaction())
	p.send(next, topic, 0, "next", 1)
	check(next.EndTransaction(p.ctx, kgo.TryCommit))
	p.shows(topic, numbered("next", 1))
}

// pipeline consumes, transforms and produces; every third round is aborted and done again.
func (p *peer) pipeline(isNextProtocol bool) {
	input, output, group := p.createPlain("input", 2), p.create("output", 2), "group-"+p.run
	plain := p.client()
	defer plain.Close()
	var expected []string
	for partition := range int32(2) {
		prefix := fmt.Sprintf("i%d-", partition)
		p.send(plain, input, partition, prefix, 10)
		expected = append(expected, numbered("o"+prefix, 10)...)
	}
	options := p.options(
		kgo.TransactionalID(p.id("pipeline")),
		kgo.ConsumeTopics(input),
		kgo.ConsumerGroup(group),
		kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.RangeBalancer()),
	)
	if isNextProtocol {
		options = append(options, kgo.ServerSideBalancer())
	}
	session, err := kgo.NewGroupTransactSession(options...)
	check(err)
	defer session.Close()
	for round, done := 0, 0; done < 20; round++ {
		fetches := session.PollRecords(p.ctx, 3)
		check(fetches.Err())
		check(session.Begin())
		produced := kgo.AbortingFirstErrPromise(session.Client())
		for _, record := range fetches.Records() {
			answer := &kgo.Record{Topic: output, Partition: record.Partition, Value: append([]byte("o"), record.Value...)}
			session.Produce(p.ctx, answer, produced.Promise())
		}
		wanted := kgo.TransactionEndTry(round%3 != 2)
		if wanted == kgo.TryCommit {
			check(produced.Err())
		}
		committed, err := session.End(p.ctx, wanted)
		check(err)
		if committed {
			done += fetches.NumRecords()
		} else if wanted == kgo.TryCommit {
			fmt.Fprintln(os.Stderr, "the session aborted by itself, as it does around a rebalance")
		}
	}
	p.soon("committed offsets", "20", func() string {
		offsets, err := p.admin.FetchOffsets(p.ctx, group)
		check(err)
		sum := int64(0)
		offsets.Each(func(each kadm.OffsetResponse) { sum += each.At })
		return fmt.Sprint(sum)
	})
	p.shows(output, expected)
}
