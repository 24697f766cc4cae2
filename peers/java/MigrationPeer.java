import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A rolling upgrade of consumers from the classic protocol to that of KIP-848, and back, by Apache Kafka's own client.
 *
 * <p>Each line of standard input is a scenario and the short name of an assignor; each is answered by one line: "ok"
 * with the number of records that were read twice, or "failed" and why.
 */
public class MigrationPeer {
    static final int PARTITIONS = 6;
    static final long PATIENCE_MS = 60_000;

    final String bootstrap;
    final String assignor;
    final Admin admin;
    final String run = UUID.randomUUID().toString().substring(0, 8);
    final String topic = "moving-" + run;
    final String group = "moving-" + run;
    final List<Member> members = new ArrayList<>();
    final Map<String, Integer> read = new HashMap<>();
    int sent = 0;

    MigrationPeer(String bootstrap, String assignor) {
        this.bootstrap = bootstrap;
        this.assignor = "org.apache.kafka.clients.consumer." + assignor;
        this.admin = Admin.create(common());
    }

    public static void main(String[] arguments) throws Exception {
        // The client logs errors to standard output.
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            MigrationPeer peer = new MigrationPeer(arguments[0], words[1]);
            try {
                peer.play(words[0]);
                answers.println("ok " + peer.read.values().stream().filter(count -> count > 1).count());
            } catch (Throwable error) {
                error.printStackTrace();
                answers.println("failed " + error.toString().replace('\n', ' '));
            } finally {
                peer.members.forEach(each -> each.consumer.close(Duration.ofSeconds(5)));
                peer.admin.close(Duration.ofSeconds(5));
            }
        }
    }

    void play(String scenario) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
        switch (scenario) {
            case "dynamic" -> dynamicMembers();
            case "static" -> staticMembers();
            default -> throw new IllegalArgumentException(scenario);
        }
    }

    void dynamicMembers() throws Exception {
        Member first = start("classic", null);
        Member second = start("classic", null);
        check(GroupType.CLASSIC);
        Member third = start("consumer", null);
        check(GroupType.CONSUMER);
        stop(first);
        check(GroupType.CONSUMER);
        stop(second);
        Member fourth = start("consumer", null);
        check(GroupType.CONSUMER);
        start("classic", null);
        check(GroupType.CONSUMER);
        stop(third);
        check(GroupType.CONSUMER);
        stop(fourth);
        check(GroupType.CLASSIC);
    }

    void staticMembers() throws Exception {
        Member first = start("classic", "one");
        Member second = start("classic", "two");
        check(GroupType.CLASSIC);
        stop(first);
        first = start("consumer", "one");
        check(GroupType.CONSUMER);
        stop(second);
        second = start("consumer", "two");
        check(GroupType.CONSUMER);
        stop(first);
        start("classic", "one");
        check(GroupType.CONSUMER);
        stop(second);
        start("classic", "two");
        check(GroupType.CLASSIC);
    }

    /** Every partition has an owner, every member has some, and every record was read. */
    void check(GroupType type) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(common())) {
            for (int partition = 0; partition < PARTITIONS; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, null, "" + sent++)).get();
            }
        }
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!isSettled()) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError(type + " of " + members.size() + " did not settle: " + members + " read "
                    + read.size() + " of " + sent);
            }
        }
        var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        if (described.type() != type || described.members().size() != members.size()) {
            throw new AssertionError("expected a group of type " + type + ", not " + described);
        }
    }

    boolean isSettled() {
        TreeSet<Integer> owned = new TreeSet<>();
        int count = 0;
        boolean hasEveryone = true;
        for (Member member : members) {
            member.poll();
            hasEveryone &= !member.consumer.assignment().isEmpty();
            count += member.consumer.assignment().size();
            member.consumer.assignment().forEach(each -> owned.add(each.partition()));
        }
        return hasEveryone && count == PARTITIONS && owned.size() == PARTITIONS && read.size() == sent;
    }

    Member start(String protocol, String instance) {
        Member member = new Member(protocol, instance);
        members.add(member);
        return member;
    }

    void stop(Member member) {
        member.poll();
        members.remove(member);
        member.consumer.close(Duration.ofSeconds(10));
    }

    Properties common() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", "peer-migration");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        return settings;
    }

    /** A consumer that commits whatever it has read, before it gives a partition up. */
    class Member implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();

        Member(String protocol, String instance) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("client.id", "peer-migration");
            settings.put("group.id", group);
            settings.put("group.protocol", protocol);
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            settings.put("key.deserializer", StringDeserializer.class.getName());
            settings.put("value.deserializer", StringDeserializer.class.getName());
            if (instance != null) {
                settings.put("group.instance.id", instance);
            }
            if (protocol.equals("classic")) {
                settings.put("partition.assignment.strategy", assignor);
                settings.put("session.timeout.ms", "10000");
                settings.put("heartbeat.interval.ms", "200");
            }
            consumer = new KafkaConsumer<>(settings);
            consumer.subscribe(List.of(topic), this);
        }

        void poll() {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                read.merge(record.value(), 1, Integer::sum);
                positions.put(
                    new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            commit();
        }

        void commit() {
            positions.keySet().retainAll(consumer.assignment());
            if (positions.isEmpty()) {
                return;
            }
            try {
                consumer.commitSync(positions);
                positions.clear();
            } catch (CommitFailedException | RebalanceInProgressException error) {
                // The next poll takes part in the rebalance; then it is committed, or read again by another.
                System.err.println(error);
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            positions.keySet().removeAll(partitions);
        }

        @Override
        public String toString() {
            return consumer.assignment().toString();
        }
    }
}
