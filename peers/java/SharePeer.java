import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What an application does with share groups (KIP-932), by Apache Kafka's own client.
 *
 * <p>Each line of standard input names a scenario and perhaps its arguments; each is answered by one line: "ok",
 * perhaps with a result, or "failed" and why.
 */
public class SharePeer {
    static final Duration LONG = Duration.ofSeconds(30);

    final String bootstrap;
    final Admin admin;
    final String run = UUID.randomUUID().toString().substring(0, 8);
    final String topic = "shared-" + run;
    final String group = "share-" + run;
    final List<KafkaShareConsumer<String, String>> open = new ArrayList<>();

    SharePeer(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(common());
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            SharePeer peer = new SharePeer(arguments[0]);
            try {
                String result = peer.play(words);
                System.out.println(("ok " + result).trim());
            } catch (Throwable error) {
                error.printStackTrace();
                System.out.println("failed " + error.toString().replace('\n', ' '));
            } finally {
                peer.open.forEach(each -> each.close(Duration.ofSeconds(5)));
                peer.admin.close(Duration.ofSeconds(5));
            }
        }
    }

    String play(String[] words) throws Exception {
        switch (words[0]) {
            case "share" -> share();
            case "release" -> release();
            case "reject" -> reject();
            case "timeout" -> timeout();
            case "renew" -> renew();
            case "several" -> several();
            case "closed" -> closed();
            case "transactions" -> transactions();
            case "consume" -> {
                return consume(words[1], words[2], Integer.parseInt(words[3]));
            }
            case "hold" -> {
                return hold(words[1], words[2]);
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
        return "";
    }

    /** Every record is delivered, and none twice, although no partition belongs to anybody. */
    void share() throws Exception {
        begin(2, Map.of());
        produce(0, 200);
        KafkaShareConsumer<String, String> consumer = consumer("implicit");
        Map<String, Integer> seen = new TreeMap<>();
        until(() -> {
            take(consumer, seen);
            return seen.size() == 200;
        });
        consumer.commitSync();
        consumer.close();
        expect(seen.values().stream().allMatch(each -> each == 1), "a record came twice: " + seen);
        produce(200, 10);
        KafkaShareConsumer<String, String> next = consumer("implicit");
        Map<String, Integer> later = new TreeMap<>();
        until(() -> {
            take(next, later);
            return later.size() >= 10;
        });
        expect(later.keySet().stream().allMatch(each -> each.compareTo("v0200") >= 0), "again: " + later);
    }

    /** A released record comes again, with a higher delivery count. */
    void release() throws Exception {
        begin(1, Map.of());
        produce(0, 5);
        KafkaShareConsumer<String, String> consumer = consumer("explicit");
        Map<String, Short> counts = new HashMap<>();
        until(() -> {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                short count = record.deliveryCount().get();
                counts.put(record.value(), count);
                boolean isLast = !record.value().equals("v0002") || count == 3;
                consumer.acknowledge(record, isLast ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
            }
            return counts.size() == 5 && counts.get("v0002") == 3;
        });
        consumer.commitSync();
        expect(counts.values().stream().filter(each -> each == 1).count() == 4, "counts: " + counts);
    }

    /** A rejected record never comes again; one that is always released is given up. */
    void reject() throws Exception {
        begin(1, Map.of("share.delivery.count.limit", "2"));
        produce(0, 3);
        KafkaShareConsumer<String, String> consumer = consumer("explicit");
        Map<String, Integer> seen = new TreeMap<>();
        until(() -> {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                seen.merge(record.value(), 1, Integer::sum);
                consumer.acknowledge(record, switch (record.value()) {
                    case "v0000" -> AcknowledgeType.REJECT;
                    case "v0001" -> AcknowledgeType.RELEASE;
                    default -> AcknowledgeType.ACCEPT;
                });
            }
            return seen.getOrDefault("v0001", 0) == 2 && seen.size() == 3;
        });
        consumer.commitSync();
        produce(3, 1);
        until(() -> {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                seen.merge(record.value(), 1, Integer::sum);
                consumer.acknowledge(record, AcknowledgeType.ACCEPT);
            }
            return seen.containsKey("v0003");
        });
        expect(seen.equals(Map.of("v0000", 1, "v0001", 2, "v0002", 1, "v0003", 1)), "seen: " + seen);
    }

    /** A record that its holder says nothing about goes to somebody else when the lock is over. */
    void timeout() throws Exception {
        begin(1, Map.of("share.record.lock.duration.ms", "15000"));
        produce(0, 1);
        KafkaShareConsumer<String, String> slow = consumer("explicit");
        List<ConsumerRecord<String, String>> held = first(slow);
        KafkaShareConsumer<String, String> other = consumer("explicit");
        List<ConsumerRecord<String, String>> again = first(other);
        expect(again.get(0).deliveryCount().get() == 2, "delivery " + again.get(0).deliveryCount());
        expect(held.get(0).offset() == again.get(0).offset(), "another record");
        other.acknowledge(again.get(0), AcknowledgeType.ACCEPT);
        other.commitSync();
    }

    /** A holder that renews its lock keeps the record. */
    void renew() throws Exception {
        begin(1, Map.of("share.record.lock.duration.ms", "15000"));
        produce(0, 1);
        KafkaShareConsumer<String, String> slow = consumer("explicit");
        ConsumerRecord<String, String> held = first(slow).get(0);
        KafkaShareConsumer<String, String> other = consumer("explicit");
        long end = System.currentTimeMillis() + 20_000;
        while (System.currentTimeMillis() < end) {
            slow.acknowledge(held, AcknowledgeType.RENEW);
            slow.commitSync();
            slow.poll(Duration.ofMillis(200));
            expect(other.poll(Duration.ofSeconds(2)).isEmpty(), "the record went to another member");
        }
        slow.acknowledge(held, AcknowledgeType.ACCEPT);
        slow.commitSync();
    }

    /** Members share one partition: each record goes to one of them. */
    void several() throws Exception {
        begin(1, Map.of());
        List<KafkaShareConsumer<String, String>> members = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            members.add(consumer("implicit"));
        }
        Map<String, Integer> seen = new TreeMap<>();
        Set<Integer> busy = new TreeSet<>();
        int[] produced = {0};
        until(() -> {
            if (produced[0] < 300) {
                produce(produced[0], 20);
                produced[0] += 20;
            }
            for (int number = 0; number < 3; number++) {
                if (take(members.get(number), seen) > 0) {
                    busy.add(number);
                }
            }
            return seen.size() == 300;
        });
        expect(seen.values().stream().allMatch(each -> each == 1), "a record came twice: " + seen);
        expect(busy.size() > 1, "only one member had work");
    }

    /** What a member holds when it is closed goes to the next. */
    void closed() throws Exception {
        begin(1, Map.of());
        produce(0, 4);
        KafkaShareConsumer<String, String> one = consumer("explicit");
        List<ConsumerRecord<String, String>> held = first(one);
        one.acknowledge(held.get(0), AcknowledgeType.ACCEPT);
        one.close();
        KafkaShareConsumer<String, String> two = consumer("explicit");
        Set<String> seen = new TreeSet<>();
        until(() -> {
            for (ConsumerRecord<String, String> record : two.poll(Duration.ofMillis(500))) {
                seen.add(record.value());
                two.acknowledge(record, AcknowledgeType.ACCEPT);
            }
            return seen.size() >= 3;
        });
        expect(!seen.contains(held.get(0).value()), "an accepted record came again");
    }

    /** With read_committed, records of aborted transactions are not delivered. */
    void transactions() throws Exception {
        begin(1, Map.of("share.isolation.level", "read_committed"));
        Properties settings = common();
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        settings.put("transactional.id", "id-" + run);
        Set<String> expected = new TreeSet<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                String value = (number % 2 == 0 ? "committed" : "aborted") + number;
                producer.send(new ProducerRecord<>(topic, value));
                producer.flush();
                if (number % 2 == 0) {
                    producer.commitTransaction();
                    expected.add(value);
                } else {
                    producer.abortTransaction();
                }
            }
        }
        KafkaShareConsumer<String, String> consumer = consumer("implicit");
        Map<String, Integer> seen = new TreeMap<>();
        until(() -> {
            take(consumer, seen);
            return seen.size() >= 3;
        });
        take(consumer, seen);
        expect(seen.keySet().equals(expected), "seen: " + seen);
    }

    /** Consumes a topic in a group until there was nothing for some seconds; returns the values. */
    String consume(String topic, String group, int quietSeconds) throws Exception {
        configure(group, Map.of());
        KafkaShareConsumer<String, String> consumer = consumer("implicit", group);
        consumer.subscribe(List.of(topic));
        Collection<String> seen = new ArrayList<>();
        long quietSince = System.currentTimeMillis();
        while (System.currentTimeMillis() < quietSince + quietSeconds * 1000L) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                seen.add(record.value());
                quietSince = System.currentTimeMillis();
            }
        }
        consumer.commitSync();
        return String.join(",", seen);
    }

    /** Acquires records, says so, and says nothing more: whoever started this program ends it. */
    String hold(String topic, String group) throws Exception {
        configure(group, Map.of());
        KafkaShareConsumer<String, String> consumer = consumer("explicit", group);
        consumer.subscribe(List.of(topic));
        open.clear();
        List<String> values = new ArrayList<>();
        first(consumer).forEach(each -> values.add(each.value()));
        return String.join(",", values);
    }

    // Words.

    void begin(int partitions, Map<String, String> configs) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        configure(group, configs);
    }

    void configure(String group, Map<String, String> configs) throws Exception {
        Map<String, String> all = new HashMap<>(configs);
        all.put("share.auto.offset.reset", "earliest");
        List<AlterConfigOp> changes = new ArrayList<>();
        all.forEach((name, value) ->
            changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
    }

    void produce(int first, int count) {
        Properties settings = common();
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = first; number < first + count; number++) {
                producer.send(new ProducerRecord<>(topic, String.format("v%04d", number)));
            }
        }
    }

    KafkaShareConsumer<String, String> consumer(String mode) {
        KafkaShareConsumer<String, String> consumer = consumer(mode, group);
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    KafkaShareConsumer<String, String> consumer(String mode, String group) {
        Properties settings = common();
        settings.put("group.id", group);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("share.acknowledgement.mode", mode);
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
        open.add(consumer);
        return consumer;
    }

    int take(KafkaShareConsumer<String, String> consumer, Map<String, Integer> seen) {
        int count = 0;
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(300))) {
            seen.merge(record.value(), 1, Integer::sum);
            count++;
        }
        return count;
    }

    List<ConsumerRecord<String, String>> first(KafkaShareConsumer<String, String> consumer) throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        until(() -> {
            consumer.poll(Duration.ofMillis(500)).forEach(found::add);
            return !found.isEmpty();
        });
        return found;
    }

    void until(BooleanSupplier done) {
        long deadline = System.currentTimeMillis() + LONG.toMillis() * 2;
        while (!done.getAsBoolean()) {
            expect(System.currentTimeMillis() < deadline, "took too long");
        }
    }

    static void expect(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    Properties common() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", "peer-share");
        return settings;
    }
}
