import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * An application of one user, by Apache Kafka's own client: what it may do changes while it runs.
 *
 * <p>The first argument is a file with the settings of the client. Each line of standard input is something to
 * do; each is answered by one line: "ok" and what was found, or "failed" and the kind of the error.
 */
public class SecuredPeer {
    static final Duration LONG = Duration.ofSeconds(20);

    final Properties settings;
    final KafkaProducer<String, String> producer;
    KafkaConsumer<String, String> consumer;

    SecuredPeer(Properties settings) {
        this.settings = settings;
        this.producer = new KafkaProducer<>(with(Map.of()));
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // for the client's log
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(reader);
        }
        // The client reads a token only from files that it is allowed to read.
        String tokens = settings.getProperty("sasl.oauthbearer.token.endpoint.url", "");
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", tokens);
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", tokens.replace("file://", ""));
        SecuredPeer peer = new SecuredPeer(settings);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                answers.println("ok " + peer.act(line.split(" ")));
            } catch (Exception error) {
                error.printStackTrace();
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answers.println("failed " + cause.getClass().getSimpleName());
            }
        }
    }

    String act(String[] words) throws Exception {
        return switch (words[0]) {
            case "write" -> write(words[1], words[2]);
            case "read" -> read(words[1], words[2]);
            case "look" -> look(words[1]);
            case "write-for" -> writeFor(words[1], Double.parseDouble(words[2]));
            case "pipeline" -> pipeline(words[1], words[2], words[3], words[4]);
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    String write(String topic, String value) throws Exception {
        return "at " + producer.send(new ProducerRecord<>(topic, 0, null, value)).get().offset();
    }

    /** The next record that the group has not read. */
    String read(String topic, String group) {
        if (consumer == null) {
            consumer = new KafkaConsumer<>(with(Map.of("group.id", group)));
            consumer.subscribe(List.of(topic));
        }
        long deadline = System.nanoTime() + LONG.toNanos();
        while (System.nanoTime() < deadline) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                consumer.commitSync();
                return record.value();
            }
        }
        throw new IllegalStateException("nothing came");
    }

    /** Ask for something that is not remembered. */
    String look(String topic) {
        try (KafkaConsumer<String, String> other = new KafkaConsumer<>(with(Map.of()))) {
            return "partitions " + other.partitionsFor(topic, LONG).size();
        }
    }

    /** How many records were written, and how often the user had to authenticate again. */
    String writeFor(String topic, double seconds) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        while (System.nanoTime() < deadline) {
            sent.add(producer.send(new ProducerRecord<>(topic, 0, null, "v" + sent.size())));
            Thread.sleep(10);
        }
        for (Future<RecordMetadata> each : sent) {
            each.get();
        }
        double again = producer.metrics().entrySet().stream()
                .filter(each -> each.getKey().name().equals("successful-reauthentication-total"))
                .mapToDouble(each -> (Double) each.getValue().metricValue()).sum();
        return sent.size() + " " + (long) again;
    }

    /** Consume, transform, produce, in one transaction for each poll, until the end of the input. */
    String pipeline(String input, String output, String group, String id) throws Exception {
        int done = 0;
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(with(Map.of("group.id", group)));
                KafkaProducer<String, String> writer = new KafkaProducer<>(with(Map.of("transactional.id", id)))) {
            writer.initTransactions();
            reader.subscribe(List.of(input));
            for (int silent = 0; silent < 10 || done == 0; silent++) {
                var polled = reader.poll(Duration.ofMillis(200));
                if (polled.isEmpty()) {
                    continue;
                }
                silent = 0;
                Map<TopicPartition, OffsetAndMetadata> after = new HashMap<>();
                writer.beginTransaction();
                for (ConsumerRecord<String, String> record : polled) {
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    after.put(partition, new OffsetAndMetadata(record.offset() + 1));
                    writer.send(new ProducerRecord<>(output, 0, null, "o" + record.value()));
                }
                writer.sendOffsetsToTransaction(after, reader.groupMetadata());
                writer.commitTransaction();
                done += polled.count();
            }
        }
        return "records " + done;
    }

    Properties with(Map<String, String> more) {
        Properties properties = new Properties();
        properties.putAll(settings);
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        properties.put("request.timeout.ms", "4000");
        properties.put("delivery.timeout.ms", "5000");
        properties.put("linger.ms", "0");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("max.poll.records", more.containsKey("group.id") ? "1" : "3");
        properties.put("enable.metrics.push", "false");
        properties.putAll(more);
        return properties;
    }
}
