package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// fails wants an error whose text names one of these codes.
func fails(what string, err error, codes ...string) {
	if err == nil {
		panic(what + " did not fail")
	}
	for _, code := range codes {
		if strings.Contains(err.Error(), code) {
			return
		}
	}
	panic(fmt.Sprintf("%s failed with %v", what, err))
}

func same(what string, expected, found []string) {
	if !slices.Equal(expected, found) {
		panic(fmt.Sprintf("%s: expected %v, found %v", what, expected, found))
	}
}

func until(what string, done func() bool) {
	for deadline := time.Now().Add(long); !done(); {
		if time.Now().After(deadline) {
			panic(what + " did not happen")
		}
	}
}

func numbered(prefix string, count int) []string {
	var texts []string
	for number := range count {
		texts = append(texts, fmt.Sprintf("%s%d", prefix, number))
	}
	return texts
}

func values(records []*kgo.Record) []string {
	var texts []string
	for _, record := range records {
		texts = append(texts, string(record.Value))
	}
	return texts
}

func (p *peer) options(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(p.bootstrap, ",")...),
		kgo.ClientID(clientID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchMaxWait(50 * time.Millisecond),
	}, more...)
}

func (p *peer) client(more ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(p.options(more...)...)
	check(err)
	return client
}

func (p *peer) id(word string) string {
	return word + "-" + p.run
}

func (p *peer) producer(word string, timeout time.Duration) *kgo.Client {
	return p.client(kgo.TransactionalID(p.id(word)), kgo.TransactionTimeout(timeout))
}

func (p *peer) create(word string, count int32) string {
	if p.visibility == "journal" {
		visibility := "journal"
		return p.createWith(word, count, map[string]*string{"semel.visibility": &visibility})
	}
	return p.createPlain(word, count)
}

func (p *peer) createPlain(word string, count int32) string {
	return p.createWith(word, count, nil)
}

func (p *peer) createWith(word string, count int32, configs map[string]*string) string {
	topic := word + "-" + p.run
	_, err := p.admin.CreateTopic(p.ctx, count, 1, configs, topic)
	check(err)
	return topic
}

// send waits until all are acknowledged.
func (p *peer) send(client *kgo.Client, topic string, partition int32, prefix string, count int) {
	var records []*kgo.Record
	for _, value := range numbered(prefix, count) {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)})
	}
	check(client.ProduceSync(p.ctx, records...).FirstErr())
}

// read gives every record below the end that this isolation level may read to, and none that comes later.
func (p *peer) read(topic string, isCommitted bool) []*kgo.Record {
	list, level := p.admin.ListEndOffsets, kgo.ReadUncommitted()
	if isCommitted {
		list, level = p.admin.ListCommittedOffsets, kgo.ReadCommitted()
	}
	ends, err := list(p.ctx, topic)
	check(err)
	check(ends.Error())
	starts := map[int32]kgo.Offset{}
	left := map[int32]int64{}
	for partition, end := range ends[topic] {
		starts[partition] = kgo.NewOffset().At(0)
		if end.Offset > 0 {
			left[partition] = end.Offset
		}
	}
	// Control records too: the last thing below the end may be a marker.
	consumer := p.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}),
		kgo.FetchIsolationLevel(level), kgo.KeepControlRecords())
	defer consumer.Close()
	var found []*kgo.Record
	for len(left) > 0 {
		fetches := consumer.PollFetches(p.ctx)
		check(fetches.Err())
		for _, record := range fetches.Records() {
			if !record.Attrs.IsControl() {
				found = append(found, record)
			}
			if record.Offset+1 >= left[record.Partition] {
				delete(left, record.Partition)
			}
		}
	}
	return found
}

// shows wants a reader of committed records to get exactly these, each once.
func (p *peer) shows(topic string, expected []string) {
	p.soon(topic, sorted(expected), func() string { return sorted(values(p.read(topic, true))) })
}

// soon means now, or within the patience that was given.
func (p *peer) soon(what, expected string, look func() string) {
	deadline := time.Now().Add(p.patience)
	found := look()
	for found != expected && time.Now().Before(deadline) {
		found = look()
	}
	if found != expected {
		panic(fmt.Sprintf("%s: expected %s, found %s", what, expected, found))
	}
}

func sorted(texts []string) string {
	return strings.Join(slices.Sorted(slices.Values(texts)), " ")
}
