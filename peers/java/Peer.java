import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What an application does with transactions, by Apache Kafka's own client.
 *
 * <p>Each line of standard input names a scenario, a visibility and how many seconds a committed
 * transaction may take to show; each is answered by one line: "ok", or "failed" and why.
 */
public class Peer {
    static final Duration LONG = Duration.ofSeconds(30);
    static final String CLIENT_ID = "peer-java";
    static final int PARTITIONS = 5;

    final String bootstrap;
    final String visibility;
    final double patienceSeconds;
    final Admin admin;
    final String run = UUID.randomUUID().toString().substring(0, 8);

    Peer(String bootstrap, String visibility, double patienceSeconds) {
        this.bootstrap = bootstrap;
        this.visibility = visibility;
        this.patienceSeconds = patienceSeconds;
        this.admin = Admin.create(common());
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            Peer peer = new Peer(arguments[0], words[1], Double.parseDouble(words[2]));
            try {
                peer.play(words[0]);
                System.out.println("ok");
            } catch (Throwable error) {
                error.printStackTrace();
                System.out.println("failed " + error.toString().replace('\n', ' '));
            } finally {
                peer.admin.close(Duration.ofSeconds(5));
            }
        }
    }

    void play(String scenario) throws Exception {
        switch (scenario) {
            case "commit" -> commit();
            case "abort" -> abort();
            case "five-partitions" -> fivePartitions();
            case "back-to-back" -> backToBack();
            case "isolation" -> isolation();
            case "fencing" -> fencing();
            case "timeout" -> timeout();
            case "pipeline-classic" -> pipeline("classic");
            case "pipeline-consumer" -> pipeline("consumer");
            case "zombie-member" -> zombieMember();
            case "invalid-records" -> invalidRecords();
            default -> throw new IllegalArgumentException(scenario);
        }
    }

    void commit() throws Exception {
        String topic = create("commit", 1);
        try (KafkaProducer<String, String> producer = producer("commit", 60_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, 0, "a", 10);
            producer.commitTransaction();
        }
        shows(topic, numbered("a", 10));
    }

    void abort() throws Exception {
        String topic = create("abort", 1);
        try (KafkaProducer<String, String> producer = producer("abort", 60_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, 0, "aborted", 10);
            producer.flush();
            producer.abortTransaction();
            shows(topic, List.of());
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "b", 3);
            producer.commitTransaction();
        }
        shows(topic, numbered("b", 3));
    }

    void fivePartitions() throws Exception {
        String topic = create("five", PARTITIONS);
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer("five", 60_000)) {
            producer.initTransactions();
            for (String outcome : List.of("commit", "abort", "commit")) {
                int round = expected.size();
                producer.beginTransaction();
                for (int partition = 0; partition < PARTITIONS; partition++) {
                    String prefix = outcome + round + "-" + partition + "-";
                    send(producer, topic, partition, prefix, 10);
                    if (outcome.equals("commit")) {
                        expected.addAll(numbered(prefix, 10));
                    }
                }
                if (outcome.equals("commit")) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
        shows(topic, expected);
    }

    void backToBack() throws Exception {
        String topic = create("many", PARTITIONS);
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer("many", 60_000)) {
            producer.initTransactions();
            for (int number = 0; number < 50; number++) {
                producer.beginTransaction();
                String prefix = "t" + number + "-";
                send(producer, topic, number % PARTITIONS, prefix, 2);
                send(producer, topic, (number + 1) % PARTITIONS, prefix + "x", 1);
                if (number % 3 == 2) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    expected.addAll(numbered(prefix, 2));
                    expected.addAll(numbered(prefix + "x", 1));
                }
            }
        }
        shows(topic, expected);
    }

    void isolation() throws Exception {
        String topic = create("isolation", 1);
        boolean isJournal = visibility.equals("journal");
        try (KafkaProducer<String, String> producer = producer("isolation", 60_000);
                KafkaProducer<String, String> plain = new KafkaProducer<>(producing())) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic, 0, "open", 5);
            producer.flush();
            plain.send(new ProducerRecord<>(topic, 0, null, "plain")).get();
            List<String> all = numbered("open", 5);
            all.add("plain");
            // A journal keeps an open transaction out of everyone's way; a marker topic holds back what follows it.
            equal("committed, open", isJournal ? List.of("plain") : List.of(), read(topic, "read_committed"));
            equal("everything, open", isJournal ? List.of("plain") : all, read(topic, "read_uncommitted"));
            producer.abortTransaction();
            shows(topic, List.of("plain"));
            equal("everything, aborted", isJournal ? List.of("plain") : all, read(topic, "read_uncommitted"));
            producer.beginTransaction();
            send(producer, topic, 0, "c", 2);
            plain.send(new ProducerRecord<>(topic, 0, null, "between")).get();
            producer.commitTransaction();
        }
        shows(topic, List.of("plain", "c0", "c1", "between"));
        if (isJournal) {
            List<Long> offsets = records(topic, "read_uncommitted").stream().map(ConsumerRecord::offset).toList();
            equal("no gaps", List.of(0L, 1L, 2L, 3L), offsets);
            List<String> order = read(topic, "read_uncommitted");
            equal("the order of commits", List.of("plain", "between", "c0", "c1"), order);
        }
    }

    void fencing() throws Exception {
        String topic = create("fencing", 1);
        try (KafkaProducer<String, String> zombie = producer("fencing", 60_000);
                KafkaProducer<String, String> successor = producer("fencing", 60_000)) {
            zombie.initTransactions();
            zombie.beginTransaction();
            send(zombie, topic, 0, "zombie", 3);
            zombie.flush();
            successor.initTransactions();
            successor.beginTransaction();
            send(successor, topic, 0, "new", 2);
            fails(zombie::commitTransaction, ProducerFencedException.class, InvalidProducerEpochException.class);
            successor.commitTransaction();
        }
        shows(topic, numbered("new", 2));
    }

    void timeout() throws Exception {
        String topic = create("timeout", 1);
        String id = id("timeout");
        try (KafkaProducer<String, String> late = producer("timeout", 1_000)) {
            late.initTransactions();
            late.beginTransaction();
            send(late, topic, 0, "late", 3);
            late.flush();
            until("the abort of " + id, LONG.toSeconds(), () -> state(id) == TransactionState.COMPLETE_ABORT);
            // The second form of the protocol knows the abort as the end of this transaction: a commit came too late.
            fails(late::commitTransaction, InvalidTxnStateException.class, ProducerFencedException.class,
                    InvalidProducerEpochException.class);
        }
        shows(topic, List.of());
        try (KafkaProducer<String, String> next = producer("timeout", 60_000)) {
            next.initTransactions();
            next.beginTransaction();
            send(next, topic, 0, "next", 1);
            next.commitTransaction();
        }
        shows(topic, numbered("next", 1));
    }

    /** Consume, transform, produce; every third round is aborted and done again. */
    void pipeline(String protocol) throws Exception {
        String input = createPlain("input", 2);
        String output = create("output", 2);
        String group = "group-" + run;
        try (KafkaProducer<String, String> plain = new KafkaProducer<>(producing())) {
            for (int number = 0; number < 20; number++) {
                plain.send(new ProducerRecord<>(input, number % 2, null, "i" + number));
            }
        }
        Properties properties = consuming("read_committed");
        properties.put("group.id", group);
        properties.put("group.protocol", protocol);
        properties.put("max.poll.records", 3);
        int done = 0;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties);
                KafkaProducer<String, String> producer = producer("pipeline", 60_000)) {
            producer.initTransactions();
            consumer.subscribe(List.of(input));
            long deadline = System.nanoTime() + LONG.toNanos();
            for (int round = 0; done < 20; round += 1) {
                if (System.nanoTime() > deadline) {
                    throw new AssertionError("only " + done + " of 20 records came");
                }
                Map<TopicPartition, OffsetAndMetadata> before = new HashMap<>();
                Map<TopicPartition, OffsetAndMetadata> after = new HashMap<>();
                var polled = consumer.poll(Duration.ofMillis(200));
                if (polled.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : polled) {
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    before.putIfAbsent(partition, new OffsetAndMetadata(record.offset()));
                    after.put(partition, new OffsetAndMetadata(record.offset() + 1));
                    producer.send(new ProducerRecord<>(output, record.partition(), null, "o" + record.value()));
                }
                producer.sendOffsetsToTransaction(after, consumer.groupMetadata());
                if (round % 3 == 2) {
                    producer.abortTransaction();
                    before.forEach((partition, offset) -> consumer.seek(partition, offset.offset()));
                } else {
                    producer.commitTransaction();
                    done += polled.count();
                }
            }
            soon("committed offsets", 20L, () -> committed(group, input, 2));
        }
        shows(output, numbered("oi", 20));
    }

    /** Offsets sent with the metadata of a member that is gone are refused, and the transaction can be aborted. */
    void zombieMember() throws Exception {
        String input = createPlain("members", 1);
        String output = create("members-out", 1);
        Properties properties = consuming("read_committed");
        properties.put("group.id", "group-" + run);
        ConsumerGroupMetadata gone;
        try (KafkaConsumer<String, String> first = new KafkaConsumer<>(properties)) {
            first.subscribe(List.of(input));
            until("an assignment", 30, () -> first.poll(Duration.ofMillis(100)) != null && !first.assignment().isEmpty());
            gone = first.groupMetadata();
        }
        try (KafkaConsumer<String, String> second = new KafkaConsumer<>(properties);
                KafkaProducer<String, String> producer = producer("members", 60_000)) {
            second.subscribe(List.of(input));
            until("an assignment", 30, () -> second.poll(Duration.ofMillis(100)) != null && !second.assignment().isEmpty());
            Map<TopicPartition, OffsetAndMetadata> offsets =
                    Map.of(new TopicPartition(input, 0), new OffsetAndMetadata(0));
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, output, 0, "zombie", 1);
            fails(() -> producer.sendOffsetsToTransaction(offsets, gone), CommitFailedException.class);
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, output, 0, "alive", 1);
            producer.sendOffsetsToTransaction(offsets, second.groupMetadata());
            producer.commitTransaction();
        }
        shows(output, numbered("alive", 1));
    }

    /** Which records of a batch were refused, and which only shared it with them (KIP-467). */
    void invalidRecords() throws Exception {
        String keyed = create("keyed", 1, Map.of("cleanup.policy", "compact"));
        equal("without a key", List.of("KafkaException", "InvalidRecordException", "KafkaException", "InvalidRecordException"),
                failures(keyed, List.of(record(keyed, "a", null), record(keyed, null, null), record(keyed, "b", null), record(keyed, null, null))));
        equal("one without a key", List.of("InvalidRecordException"), failures(keyed, List.of(record(keyed, null, null))));
        long now = System.currentTimeMillis();
        String timed = create("timed", 1, Map.of("message.timestamp.before.max.ms", "60000"));
        equal("one timestamp", List.of("KafkaException", "InvalidTimestampException"),
                failures(timed, List.of(record(timed, "a", now), record(timed, "b", now - 3_600_000))));
        equal("two timestamps", List.of("InvalidRecordException", "KafkaException", "InvalidRecordException"),
                failures(timed, List.of(record(timed, "a", 1_000L), record(timed, "b", now), record(timed, "c", now + 36_000_000))));
        equal("what was written", List.of(), read(timed, "read_uncommitted"));
    }

    static ProducerRecord<String, String> record(String topic, String key, Long timestamp) {
        return new ProducerRecord<>(topic, 0, timestamp, key, "value");
    }

    /** The exception of each record, sent as one batch. */
    List<String> failures(String topic, List<ProducerRecord<String, String>> records) throws Exception {
        Properties properties = producing();
        properties.put("linger.ms", "60000");
        List<String> names = new ArrayList<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            for (ProducerRecord<String, String> each : records) {
                producer.send(each, (metadata, error) -> names.add(error == null ? "none" : error.getClass().getSimpleName()));
            }
            producer.flush();
        }
        return names;
    }

    // Words

    String create(String word, int partitions) throws Exception {
        return create(word, partitions, visibility.equals("journal") ? Map.of("semel.visibility", "journal") : Map.of());
    }

    String createPlain(String word, int partitions) throws Exception {
        return create(word, partitions, Map.of());
    }

    String create(String word, int partitions, Map<String, String> configs) throws Exception {
        String topic = word + "-" + run;
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        return topic;
    }

    String id(String word) {
        return word + "-" + run;
    }

    Properties common() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("client.id", CLIENT_ID);
        properties.put("enable.metrics.push", "false");
        return properties;
    }

    Properties producing() {
        Properties properties = common();
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        return properties;
    }

    KafkaProducer<String, String> producer(String word, int timeoutMs) {
        Properties properties = producing();
        properties.put("transactional.id", id(word));
        properties.put("transaction.timeout.ms", timeoutMs);
        return new KafkaProducer<>(properties);
    }

    Properties consuming(String isolation) {
        Properties properties = common();
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        properties.put("isolation.level", isolation);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("fetch.max.wait.ms", "50");
        return properties;
    }

    void send(KafkaProducer<String, String> producer, String topic, int partition, String prefix, int count) {
        for (String value : numbered(prefix, count)) {
            producer.send(new ProducerRecord<>(topic, partition, null, value));
        }
    }

    static List<String> numbered(String prefix, int count) {
        return IntStream.range(0, count).mapToObj(number -> prefix + number).collect(Collectors.toCollection(ArrayList::new));
    }

    TransactionState state(String id) {
        try {
            return admin.describeTransactions(Set.of(id)).description(id).get().state();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    long committed(String group, String topic, int partitions) {
        Map<TopicPartition, OffsetAndMetadata> offsets;
        try {
            offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return IntStream.range(0, partitions).mapToLong(each -> offsets.get(new TopicPartition(topic, each)).offset()).sum();
    }

    /** Every record below the end that this isolation level may read to; no record that would come later. */
    List<ConsumerRecord<String, String>> records(String topic, String isolation) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(consuming(isolation))) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(each -> new TopicPartition(topic, each.partition())).toList();
            Map<TopicPartition, Long> ends = new LinkedHashMap<>(consumer.endOffsets(partitions));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            until("the end of " + topic, LONG.toSeconds(), () -> {
                consumer.poll(Duration.ofMillis(100)).forEach(found::add);
                return partitions.stream().allMatch(each -> consumer.position(each) >= ends.get(each));
            });
        }
        return found;
    }

    List<String> read(String topic, String isolation) {
        return records(topic, isolation).stream().map(ConsumerRecord::value).toList();
    }

    /** A read_committed reader gets exactly these, each once. */
    void shows(String topic, List<String> expected) {
        List<String> sorted = expected.stream().sorted().toList();
        soon(topic, sorted, () -> read(topic, "read_committed").stream().sorted().toList());
    }

    /** Now, or within the patience that was given. */
    void soon(String what, Object expected, Supplier<Object> look) {
        long deadline = System.nanoTime() + (long) (patienceSeconds * 1e9);
        Object found = look.get();
        while (!found.equals(expected) && System.nanoTime() < deadline) {
            found = look.get();
        }
        equal(what, expected, found);
    }

    static void equal(String what, Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    static void fails(Runnable act, Class<?>... kinds) {
        try {
            act.run();
        } catch (KafkaException error) {
            for (Class<?> kind : kinds) {
                if (kind.isInstance(error) || kind.isInstance(error.getCause())) {
                    return;
                }
            }
            throw error;
        }
        throw new AssertionError("it did not fail with " + List.of(kinds));
    }

    static void until(String what, long seconds, Supplier<Boolean> check) {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (!check.get()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError(what + " did not happen within " + seconds + " seconds");
            }
        }
    }
}
